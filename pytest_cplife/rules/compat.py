"""COMPAT: files of earlier formats load as what they are, or are refused; never as a mixture."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.archives import archives, format_changes, still_loads, trains_on
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.edited import accepted, right_or_refused, touched
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_RUNS = ("saving", "legacy")


@rule(
    "COMPAT-01",
    "integer keyed optimizer state is mapped or refused",
    statement="A file whose optimizer state is keyed by position, as torch writes it, gives every"
    " parameter its own state, or is refused.",
    why="State that is skipped because its keys are numbers is a silent fresh start.",
    cause="Keys looked up by name only, and what is not found taken for new.",
    runs=_RUNS,
    events=("optimizer state",),
)
def integer_keys(case: Case) -> Iterator[Finding]:
    yield from completes(case, "COMPAT-01", "legacy")
    yield from right_or_refused(case, "legacy", "integer keys")


@rule(
    "COMPAT-02",
    "another order is never mixed",
    statement="Optimizer state keyed by position in another order than today's is mapped right or"
    " refused; no parameter gets another one's state.",
    why="torch maps by position and checks no shape: a bias receives a matrix's moments.",
    cause="Optimizer.load_state_dict on a file whose parameters were registered in another order.",
    runs=_RUNS,
    events=("optimizer state",),
)
def other_order(case: Case) -> Iterator[Finding]:
    yield from right_or_refused(case, "legacy", "integer keys in another order")


@rule(
    "COMPAT-03",
    "a missing average is backfilled",
    statement="A file in which one parameter has no average loads; that average is made anew, and"
    " all others are those that were saved.",
    why="A model that grew a weight would otherwise lose its whole average, or its whole resume.",
    cause="A strict load of the averages, or none at all when a key is missing.",
    level="should",
    runs=(*_RUNS, "resumed"),
)
def average_backfilled(case: Case) -> Iterator[Finding]:
    run = case["legacy"]
    edit = "a missing average"
    run.fact(edit)
    name = touched(run, edit)
    yield from accepted(case, "legacy", edit, without=(name,))
    if not any(run.fact(edit)) and name not in run.at(f"{edit}: after").ema:
        yield Violation(name, "an average made anew", "none", f"after {edit}")


@rule(
    "COMPAT-04",
    "an extra entry does no harm",
    statement="A file with a top-level entry that this version does not know loads as without it.",
    why="Files of a later version, or with a colleague's note in them, are still checkpoints.",
    cause="A check of the whole payload's keys against an exact list.",
    level="should",
    runs=(*_RUNS, "resumed"),
)
def extra_entry(case: Case) -> Iterator[Finding]:
    yield from accepted(case, "legacy", "an extra entry")


@rule(
    "COMPAT-05",
    "dtensors in a file are read or refused",
    statement="A file whose model holds replicated DTensors loads as the values that they stand"
    " for, or is refused.",
    why="Files of before the conversion to plain tensors exist; one rank's shard of them is junk.",
    cause="to_local() on load, or a DTensor of a dead mesh put into the live model.",
    runs=_RUNS,
)
def dtensors(case: Case) -> Iterator[Finding]:
    yield from right_or_refused(case, "legacy", "dtensors")


@rule(
    "COMPAT-06",
    "files that are kept still load",
    statement="Every file of legacy_checkpoints() loads, at its global step, and, where digests are"
    " given, with its weights.",
    why="A format is only dropped on purpose.",
    cause="A renamed key, a new required entry, or a class that moved.",
    runs=("kept",),
    needs=("legacy_checkpoints",),
)
def kept_files(case: Case) -> Iterator[Finding]:
    yield from completes(case, "COMPAT-06", "kept")
    run = case["kept"]
    files = run.fact("kept")[0]
    for number, (format, step, digests) in enumerate(files):
        state = run.at(f"kept {number}")
        seen = state.ranks[0].counters["global_step"]
        if seen != step:
            yield Violation(f"{format}: global_step", f"{step}", f"{seen}", "after load")
        for name, digest in (digests or {}).items():
            records = state.parameters.get(name)
            value = "missing" if records is None else run.assembler.digest(records)
            if value != digest:
                yield Violation(f"{format}: {name}", digest, value, "after load")
    if not files:
        yield Violation("legacy_checkpoints()", "at least one file", "none", "kept")


@rule(
    "COMPAT-07",
    "golden archives still load",
    statement="Every archive of --cplife-golden loads on every mesh, and gives the weights,"
    " buffers, optimizer state, averages and counters that were recorded, bit for bit.",
    why="A checkpoint of months ago is worth what today's code makes of it.",
    cause="A key that was renamed on both sides at once, a default for what is not found, or state"
    " that another version of a library lays out in another way.",
    runs=("golden",),
)
def golden_archives(case: Case) -> Iterator[Finding]:
    yield from completes(case, "COMPAT-07", "golden")
    for archive in archives(case):
        yield from still_loads(case, archive)


@rule(
    "COMPAT-08",
    "a new format has its archive",
    statement="Today's file is made as the newest golden archive of the same adapter is: entries,"
    " keys, dtypes, and names or numbers for keys of the optimizer state.",
    why="A format that no archive holds is one that nobody notices when it no longer loads.",
    cause="A file that was changed without recording an archive of it, or changed by accident.",
    level="should",
    runs=("golden", "files"),
)
def new_format(case: Case) -> Iterator[Finding]:
    yield from format_changes(case)


@rule(
    "COMPAT-14",
    "an old file trains on as it did",
    statement="On the mesh that a golden archive was recorded on, the losses after a load of it are"
    " those that came after the save then.",
    why="State that loads bit for bit is worth little where the code makes something else of it.",
    cause="A default that was changed, a loss or a schedule with another meaning, or another order"
    " of data.",
    level="should",
    runs=("golden",),
    budgeted=True,
)
def old_file_trains_on(case: Case) -> Iterator[Finding]:
    yield from completes(case, "COMPAT-14", "golden")
    yield from trains_on(case)
