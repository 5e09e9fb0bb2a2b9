"""Which rule answers for which part of which run: a part that fails is one rule's failure.

Every other rule that needs what came after is blocked by it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.run import Unanswered
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Measurement, Violation

OWNERS: dict[tuple[str, str], str] = {
    ("uninterrupted", "start"): "PLACE-01",
    ("uninterrupted", "train"): "GRAD-01",
    ("uninterrupted", "train on"): "GRAD-01",
    ("uninterrupted", "close"): "GRAD-01",
    ("refusal", "start"): "PLACE-05",
    ("refusal", "close"): "PLACE-05",
    ("parity", "start"): "GRAD-08",
    ("parity", "train"): "GRAD-08",
    ("parity", "noisy step"): "RNG-07",
    ("parity", "close"): "GRAD-08",
    ("saving", "start"): "SAVE-01",
    ("saving", "train"): "SAVE-01",
    ("saving", "save"): "SAVE-01",
    ("saving", "train on"): "SAVE-01",
    ("saving", "close"): "SAVE-01",
    ("early", "start"): "SAVE-09",
    ("early", "save"): "SAVE-09",
    ("early", "train"): "SAVE-09",
    ("early", "close"): "SAVE-09",
    ("files", "read saved"): "SAVE-03",
    ("files", "read saved again"): "SAVE-03",
    ("files", "load serial"): "SERIAL-01",
    ("serial", "build"): "SERIAL-02",
    ("serial", "start"): "SERIAL-02",
    ("serial", "train"): "SERIAL-02",
    ("serial", "train with other noise"): "SERIAL-02",
    ("serial", "close"): "SERIAL-02",
    ("resumed", "start"): "LOAD-01",
    ("resumed", "load"): "LOAD-01",
    ("resumed", "train on"): "GO-01",
    ("resumed", "save again"): "GO-01",
    ("resumed", "close"): "GO-01",
    ("relayed", "start"): "GO-09",
    ("relayed", "load"): "GO-09",
    ("relayed", "train on"): "GO-09",
    ("relayed", "save again"): "GO-09",
    ("relayed", "close"): "GO-09",
    ("relayed again", "start"): "GO-09",
    ("relayed again", "load"): "GO-09",
    ("relayed again", "save again"): "GO-09",
    ("relayed again", "read"): "GO-15",
    ("relayed again", "close"): "GO-09",
    ("relayed thrice", "start"): "GO-09",
    ("relayed thrice", "load"): "GO-09",
    ("relayed thrice", "train on"): "GO-09",
    ("relayed thrice", "close"): "GO-09",
    ("midway", "start"): "SAVE-11",
    ("midway", "train"): "SAVE-11",
    ("midway", "save"): "SAVE-11",
    ("midway", "train on"): "SAVE-11",
    ("midway", "read"): "SAVE-11",
    ("midway", "close"): "SAVE-11",
    ("rewound", "start"): "GO-10",
    ("rewound", "load"): "GO-10",
    ("rewound", "train"): "GO-10",
    ("rewound", "close"): "GO-10",
    ("epochs", "start"): "GO-16",
    ("epochs", "train"): "GO-16",
    ("epochs", "save"): "GO-16",
    ("epochs", "close"): "GO-16",
    ("epochs resumed", "start"): "GO-16",
    ("epochs resumed", "load"): "GO-16",
    ("epochs resumed", "train"): "GO-16",
    ("epochs resumed", "close"): "GO-16",
    ("converted", "start"): "SAVE-16",
    ("converted", "train"): "SAVE-16",
    ("converted", "to_plain"): "SAVE-16",
    ("converted", "realign"): "SAVE-16",
    ("converted", "close"): "SAVE-16",
    ("transferred", "start"): "LOAD-17",
    ("transferred", "edit"): "LOAD-17",
    ("transferred", "offer a file with its own weights"): "LOAD-17",
    ("transferred", "offer a file with a module less"): "LOAD-17",
    ("transferred", "offer a file with a module more"): "LOAD-17",
    ("transferred", "offer a file with a weight of another width"): "LOAD-18",
    ("transferred", "offer a file with foreign names"): "LOAD-18",
    ("transferred", "offer a file with another prefix"): "LOAD-18",
    ("transferred", "close"): "LOAD-17",
    ("still", "start"): "LOAD-11",
    ("still", "load"): "LOAD-11",
    ("still", "predict"): "LOAD-11",
    ("still", "still step"): "LOAD-11",
    ("still", "close"): "LOAD-11",
    ("refusing", "start"): "LOAD-12",
    ("refusing", "edit"): "LOAD-12",
    ("refusing", "offer a file with a missing weight"): "LOAD-12",
    ("refusing", "offer a file with a weight of another size"): "LOAD-12",
    ("refusing", "offer a file with an unknown weight"): "LOAD-12",
    ("refusing", "offer a file with optimizer state of another size"): "OPT-10",
    ("refusing", "offer a file with no state of one parameter"): "OPT-11",
    ("refusing", "offer a file with another step on other ranks"): "LOAD-15",
    ("refusing", "close"): "LOAD-12",
    ("evaluated", "start"): "GO-11",
    ("evaluated", "train"): "GO-11",
    ("evaluated", "predict"): "GO-11",
    ("evaluated", "swap"): "EMA-08",
    ("evaluated", "swap under inference mode"): "EMA-09",
    ("evaluated", "interrupted swap"): "EMA-10",
    ("evaluated", "step after swaps"): "EMA-08",
    ("evaluated", "read"): "EMA-11",
    ("evaluated", "close"): "GO-11",
    ("legacy", "start"): "COMPAT-01",
    ("legacy", "edit"): "COMPAT-01",
    ("legacy", "offer a file with integer keys"): "COMPAT-01",
    ("legacy", "offer a file with integer keys in another order"): "COMPAT-02",
    ("legacy", "offer a file with a missing average"): "COMPAT-03",
    ("legacy", "offer a file with an extra entry"): "COMPAT-04",
    ("legacy", "offer a file with dtensors"): "COMPAT-05",
    ("legacy", "offer a file with names in another order"): "COMPAT-09",
    ("legacy", "offer a file with more param groups"): "COMPAT-12",
    ("legacy", "offer a file with fewer param groups"): "COMPAT-12",
    ("legacy", "offer a file with another memory order"): "COMPAT-10",
    ("legacy", "offer a file with another dtype"): "COMPAT-11",
    ("legacy", "offer a file with sharded dtensors"): "COMPAT-13",
    ("legacy", "close"): "COMPAT-01",
    ("kept", "start"): "COMPAT-06",
    ("kept", "load a kept file"): "COMPAT-06",
    ("kept", "close"): "COMPAT-06",
    ("golden", "start"): "COMPAT-07",
    ("golden", "load a golden archive"): "COMPAT-07",
    ("golden", "go on from a golden archive"): "COMPAT-14",
    ("golden", "close"): "COMPAT-07",
    ("sharding", "start"): "DCP-01",
    ("sharding", "train"): "DCP-01",
    ("sharding", "save sharded"): "DCP-01",
    ("sharding", "train on"): "DCP-01",
    ("sharding", "read layout"): "DCP-01",
    ("sharding", "close"): "DCP-01",
    ("unsharding", "start"): "DCP-01",
    ("unsharding", "load sharded"): "DCP-01",
    ("unsharding", "train on"): "DCP-01",
    ("unsharding", "save sharded again"): "DCP-25",
    ("unsharding", "close"): "DCP-01",
    ("unsharding again", "start"): "DCP-25",
    ("unsharding again", "load sharded"): "DCP-25",
    ("unsharding again", "close"): "DCP-25",
    ("resharding", "start"): "DCP-05",
    ("resharding", "load sharded"): "DCP-05",
    ("resharding", "close"): "DCP-05",
    ("sharded files", "read the model's part"): "DCP-18",
    ("damaged", "start"): "DCP-09",
    ("damaged", "damage"): "DCP-09",
    ("damaged", "offer a checkpoint with a missing rank file"): "DCP-09",
    ("damaged", "offer a checkpoint with a truncated rank file"): "DCP-09",
    ("damaged", "offer a checkpoint with a flipped bit"): "DCP-09",
    ("damaged", "offer a checkpoint with a hole in the metadata"): "DCP-13",
    ("damaged", "offer a checkpoint with a missing tensor"): "DCP-14",
    ("damaged", "offer a checkpoint with an unknown tensor"): "DCP-15",
    ("damaged", "offer a checkpoint with a tensor of another dtype"): "DCP-16",
    ("damaged", "offer a checkpoint with a later version"): "DCP-17",
    ("damaged", "offer a checkpoint with code in the metadata"): "SEC-04",
    ("damaged", "offer a checkpoint with code in an object"): "SEC-05",
    ("damaged", "offer a checkpoint with a path to the outside"): "SEC-06",
    ("damaged", "close"): "DCP-09",
    ("weighed", "start"): "MEM-01",
    ("weighed", "train"): "MEM-01",
    ("weighed", "save"): "MEM-01",
    ("weighed", "save sharded"): "MEM-03",
    ("weighed", "load"): "MEM-02",
    ("weighed", "load sharded"): "MEM-03",
    ("weighed", "close"): "MEM-01",
    ("begun", "start"): "DCP-21",
    ("begun", "train"): "DCP-21",
    ("begun", "begin save"): "DCP-21",
    ("begun", "train on"): "DCP-21",
    ("begun", "wait"): "DCP-21",
    ("begun", "read layout"): "DCP-21",
    ("begun", "close"): "DCP-21",
    ("begun again", "start"): "DCP-21",
    ("begun again", "load sharded"): "DCP-21",
    ("begun again", "close"): "DCP-21",
    ("begun in vain", "start"): "DCP-24",
    ("begun in vain", "train"): "DCP-24",
    ("begun in vain", "save in vain"): "DCP-24",
    ("begun in vain", "close"): "DCP-24",
    ("late", "start"): "OPT-12",
    ("late", "train"): "OPT-12",
    ("late", "save"): "OPT-12",
    ("late", "load"): "OPT-12",
    ("late", "close"): "OPT-12",
    ("begun twice", "start"): "DCP-27",
    ("begun twice", "train"): "DCP-27",
    ("begun twice", "begin save"): "DCP-27",
    ("begun twice", "train on"): "DCP-27",
    ("begun twice", "begin a second save"): "DCP-27",
    ("begun twice", "wait for both"): "DCP-27",
    ("begun twice", "close"): "DCP-27",
    ("begun twice again", "start"): "DCP-27",
    ("begun twice again", "load sharded"): "DCP-27",
    ("begun twice again", "close"): "DCP-27",
    ("exporting", "export"): "DCP-20",
    ("exporting", "read exported"): "DCP-20",
    ("exported", "start"): "DCP-20",
    ("exported", "load"): "DCP-20",
    ("exported", "close"): "DCP-20",
    ("ungathered", "edit"): "SEC-07",
    ("ungathered", "load serial"): "SEC-07",
    ("marked", "start"): "SEC-02",
    ("marked", "edit"): "SEC-02",
    ("marked", "offer a file with foreign code"): "SEC-02",
    ("marked", "offer a file with an object"): "SEC-03",
    ("marked", "close"): "SEC-02",
    ("fresh", "read in a new interpreter"): "SERIAL-08",
    ("crossed", "start"): "LOAD-09",
    ("crossed", "load"): "LOAD-09",
    ("crossed", "load again"): "RNG-06",
    ("crossed", "predict"): "GO-13",
    ("crossed", "go on"): "GO-13",
    ("crossed", "close"): "LOAD-09",
    ("onward", "start"): "GO-13",
    ("onward", "load"): "GO-13",
    ("onward", "predict"): "GO-13",
    ("onward", "go on"): "GO-13",
    ("onward", "close"): "GO-13",
    ("serial saving", "start"): "SERIAL-03",
    ("serial saving", "train"): "SERIAL-03",
    ("serial saving", "save"): "SERIAL-03",
    ("serial saving", "load"): "SERIAL-06",
    ("serial saving", "predict"): "SERIAL-06",
    ("serial saving", "go on"): "SERIAL-06",
    ("serial saving", "close"): "SERIAL-06",
    ("from serial", "start"): "SERIAL-03",
    ("from serial", "load"): "SERIAL-03",
    ("from serial", "go on"): "SERIAL-06",
    ("from serial", "close"): "SERIAL-03",
    ("through serial", "start"): "SERIAL-04",
    ("through serial", "load"): "SERIAL-04",
    ("through serial", "save again"): "SERIAL-04",
    ("through serial", "predict"): "SERIAL-06",
    ("through serial", "go on"): "SERIAL-06",
    ("through serial", "close"): "SERIAL-04",
    ("crossed back", "start"): "SERIAL-05",
    ("crossed back", "load"): "SERIAL-05",
    ("crossed back", "close"): "SERIAL-05",
}

CHECKPOINTS = ("", " sharded")
"""The endings of the names of runs that interrupt saves: of plain checkpoints, and of sharded."""
_FIRST = 12
"""How many rules about plain checkpoints there were before the first about a sharded one."""


def crash_id(number: int, suffix: str) -> str:
    """The rule about checkpoints of one kind that is CRASH-`number` where they are plain.

    The same of sharded ones is CRASH-13 to 24 for 01 to 12, and 37 and 38 for 35 and 36.
    """
    if suffix:
        number += _FIRST if number <= _FIRST else 2
    return f"CRASH-{number:02}"


_INTERRUPTED = {
    ("overwriting", "start"): 8,
    ("overwriting", "train"): 8,
    ("overwriting", "save"): 8,
    ("overwriting", "replace"): 8,
    ("overwriting", "close"): 8,
    ("recovered", "put back"): 8,
    ("recovered", "start"): 8,
    ("recovered", "load"): 8,
    ("recovered", "load an interrupted save"): 9,
    ("recovered", "close"): 8,
    ("failing", "start"): 6,
    ("failing", "train"): 6,
    ("failing", "save"): 6,
    ("failing", "replace"): 6,
    ("failing", "failing save"): 1,
    ("failing", "save again"): 6,
    ("failing", "close"): 6,
    ("retried", "put back"): 6,
    ("retried", "start"): 6,
    ("retried", "load"): 6,
    ("retried", "load an interrupted save"): 3,
    ("retried", "close"): 6,
    ("killed", "start"): 12,
    ("killed", "train"): 12,
    ("killed", "save"): 12,
    ("killed", "replace"): 12,
    ("killed", "close"): 12,
    ("restarted", "start"): 12,
    ("restarted", "load an interrupted save"): 11,
    ("restarted", "train"): 12,
    ("restarted", "save again"): 12,
    ("restarted", "load"): 12,
    ("restarted", "close"): 12,
    ("moved over", "put back"): 36,
    ("moved over", "start"): 36,
    ("moved over", "load an interrupted save"): 35,
    ("moved over", "load"): 36,
    ("moved over", "train"): 36,
    ("moved over", "replace"): 36,
    ("moved over", "close"): 36,
    ("returned over", "start"): 36,
    ("returned over", "load"): 36,
    ("returned over", "close"): 36,
}

OWNERS |= {
    ("spoiled", "spoil"): "CRASH-25",
    ("spoiled", "start"): "CRASH-25",
    ("spoiled", "offer a spoiled file"): "CRASH-25",
    ("spoiled", "edit"): "CRASH-28",
    ("spoiled", "offer a file with a later version"): "CRASH-28",
    ("spoiled", "close"): "CRASH-25",
    ("advancing", "start"): "CRASH-29",
    ("advancing", "train"): "CRASH-29",
    ("advancing", "first save into"): "CRASH-34",
    ("advancing", "save into"): "CRASH-29",
    ("advancing", "save where nothing can be removed"): "CRASH-31",
    ("advancing", "close"): "CRASH-29",
    ("found", "put back"): "CRASH-29",
    ("found", "start"): "CRASH-29",
    ("found", "load"): "CRASH-29",
    ("found", "load an interrupted save"): "CRASH-30",
    ("found", "take away"): "CRASH-39",
    ("found", "load without a file"): "CRASH-39",
    ("found", "close"): "CRASH-29",
    ("moved", "put back"): "CRASH-32",
    ("moved", "start"): "CRASH-32",
    ("moved", "load an interrupted save"): "CRASH-32",
    ("moved", "load"): "CRASH-32",
    ("moved", "train"): "CRASH-32",
    ("moved", "save into"): "CRASH-32",
    ("moved", "close"): "CRASH-32",
    ("returned", "start"): "CRASH-33",
    ("returned", "load"): "CRASH-33",
    ("returned", "close"): "CRASH-33",
}

OWNERS |= {
    (run + suffix, phase): crash_id(number, suffix)
    for suffix in CHECKPOINTS
    for (run, phase), number in _INTERRUPTED.items()
}


def owner(run: str, phase: str) -> str:
    """The rule that fails when `phase` of `run` does.

    A failure outside any phase is the suite's own affair or the adapter's constructor's; the
    rule of the run's first phase answers for it.
    """
    if (run, phase) in OWNERS:
        return OWNERS[run, phase]
    return next((rule for (name, _), rule in OWNERS.items() if name == run), "ADAPTER-01")


def completes(case: Case, rule: str, *runs: str) -> Iterator[Finding]:
    """Find the phases that belong to `rule` and did not complete.

    Raises:
        Unanswered: a part that belongs to another rule failed before.
    """
    for run in runs:
        evidence = case[run]
        failure = evidence.failure
        mine = [phase for (name, phase), id in OWNERS.items() if name == run and id == rule]
        done = [phase for phase in mine if evidence.completed(phase)]
        if failure is not None and owner(run, failure.phase) != rule:
            # What failed later is for another rule to say, as long as all of this one's is there.
            if len(done) < len([phase for phase in mine if phase != "close"]):
                raise Unanswered(run, mine[0])
        elif failure is not None:
            yield Violation(
                f"{failure.phase or 'before the first phase'} ({run})",
                "completes on every rank",
                failure.headline,
                moment=f"{run}: {failure.phase}",
                ranks=failure.ranks,
                detail=failure.detail,
            )
        elif evidence.held_back:
            raise Unanswered(run, mine[0])
        else:
            yield Measurement(f"phases of {run} left open", float(len(mine) - len(done)), 0.0)
