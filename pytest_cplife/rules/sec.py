"""SEC: what a load executes, and where it reads."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.pickles import PickledFile
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_SHARDED = ("save_sharded", "load_sharded")
_ANY = "the adapter declares that checkpoints hold any object (payload_objects = True)"


@rule(
    "SEC-01",
    "plain files hold plain data",
    statement="torch.load reads the plain checkpoint under weights_only=True, but for what the"
    " adapter declares as payload_objects.",
    why="A file of objects runs code where it is read, and needs the trainer's modules there.",
    cause="A configuration, a NumPy random state or a path kept as the object that it is.",
    level="should",
    runs=("files",),
)
def plain_data(case: Case) -> Iterator[Finding]:
    files: list[PickledFile] = case["files"].fact("pickled files")[0]
    declared = case.declared.payload_objects
    if declared is True:
        raise NotCovered(_ANY)
    if not files:
        raise NotCovered("the checkpoint has no file in the format of torch.save")
    allowed = set(declared or ())
    for file in files:
        where = file.name or "checkpoint"
        for name in file.foreign:
            if name not in allowed:
                yield Violation(name, "plain data, or declared", "an object", where)
        if file.refusal:
            yield Violation(where, "read under weights_only=True", file.refusal, "files")
    yield Measurement(f"files ({len(files)}) with objects", sum(bool(f.foreign) for f in files), 0)


@rule(
    "SEC-02",
    "a plain load runs no foreign code",
    statement="Of a plain checkpoint with an object that the adapter does not declare, load() runs"
    " no code, whether it refuses the file or not.",
    why="Whoever can place a file where a training resumes from runs what he likes on its ranks.",
    cause="weights_only=False for a payload that needs no objects.",
    level="should",
    runs=("marked",),
)
def no_foreign_code(case: Case) -> Iterator[Finding]:
    if case.declared.payload_objects is True:
        raise NotCovered(_ANY)
    yield from completes(case, "SEC-02", "marked")
    run = case["marked"]
    run.fact("foreign code")
    yield from _ran(run.fact("foreign code ran"), "a further entry of the file")


@rule(
    "SEC-03",
    "declared objects load",
    statement="Where the adapter declares that checkpoints hold any object, a file with an object"
    " of an unknown class in a further entry loads, and all state is what was saved.",
    why="A load that was restricted after the fact refuses the files that users have.",
    cause="weights_only=True, or its default, on files whose payload holds objects by design.",
    runs=("saving", "marked"),
)
def declared_objects(case: Case) -> Iterator[Finding]:
    if case.declared.payload_objects is not True:
        raise NotCovered("the adapter does not declare that checkpoints hold any object")
    yield from completes(case, "SEC-03", "marked")
    run, edit = case["marked"], "an object"
    refused = [(rank, text) for rank, text in enumerate(run.fact(edit)) if text]
    if refused:
        ranks = tuple(rank for rank, _ in refused)
        yield Violation(edit, "loads", refused[0][1], "a file with an object", ranks=ranks)
        return
    saved, loaded = case["saving"].at("before save"), run.at(f"{edit}: after")
    yield from compare_parts(case, run, saved, loaded, moment="after a load of an object")


@rule(
    "SEC-04",
    "sharded metadata runs no code",
    statement="Of a sharded checkpoint whose metadata names a function, load_sharded() does not run"
    " it, whether it refuses the checkpoint or not.",
    why="The metadata is the first thing that all ranks read.",
    cause="pickle.load on the metadata, as torch.distributed.checkpoint does it.",
    level="should",
    runs=("damaged",),
    needs=_SHARDED,
)
def metadata_runs_nothing(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SEC-04", "damaged")
    yield from _damage_ran(case, "code in the metadata")


@rule(
    "SEC-05",
    "objects of a sharded checkpoint run no code",
    statement="Of a sharded checkpoint with a foreign object among its own, load_sharded() runs no"
    " code, whether it refuses the checkpoint or not.",
    why="One changed object in a data file runs on every rank.",
    cause="Values that are no tensors in the state that torch.distributed.checkpoint saves: it"
    " unpickles them without a restriction.",
    level="should",
    runs=("damaged",),
    needs=_SHARDED,
)
def objects_run_nothing(case: Case) -> Iterator[Finding]:
    if case.declared.payload_objects is True:
        raise NotCovered(_ANY)
    yield from completes(case, "SEC-05", "damaged")
    yield from _damage_ran(case, "code in an object")


@rule(
    "SEC-06",
    "a sharded load stays in its directory",
    statement="Metadata that names a data file outside of the directory ends load_sharded() in an"
    " exception on every rank.",
    why="A checkpoint that is made of files elsewhere is whole only until they change, and one from"
    " elsewhere can have any file read.",
    cause="Relative paths of the metadata joined to the directory unseen.",
    runs=("damaged",),
    needs=_SHARDED,
)
def stays_inside(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SEC-06", "damaged")
    damage = "a path to the outside"
    outcomes = case["damaged"].fact(damage)
    accepted = tuple(rank for rank, outcome in enumerate(outcomes) if not outcome)
    if accepted:
        path = case["damaged"].ranks[0].facts[f"damaged {damage}"]
        yield Violation(path, "an exception", "read", damage, ranks=accepted)


@rule(
    "SEC-07",
    "a shard is no weight",
    statement="Where there is no process group, load_serial() of a file with DTensors, each one"
    " rank's part, ends in an exception; it gives no module with anything else in their place.",
    why="A DTensor is unpickled without a group, says the whole shape, and holds a shard.",
    cause="to_local() for whatever a file holds, or rows copied as far as they reach.",
    runs=("saving", "ungathered"),
)
def shard_is_no_weight(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SEC-07", "ungathered")
    run = case["ungathered"]
    if run.fact("refusal")[0]:
        return
    saved = case["saving"].at("before save").parameters
    loaded: dict[str, TensorRecord] = run.fact("loaded")[0]
    expected = {name: records for name, records in saved.items() if name in loaded}
    observed = {name: [loaded[name]] for name in expected}
    label = "ungathered: load_serial()"
    yield from compare(case, run.assembler, "weights", expected, observed, moment=label)


def _damage_ran(case: Case, damage: str) -> Iterator[Finding]:
    run = case["damaged"]
    run.fact(damage)
    touched = run.ranks[0].facts[f"damaged {damage}"]
    yield from _ran(run.fact(f"{damage}: ran"), touched)


def _ran(flags: list[bool], where: str) -> Iterator[Finding]:
    ranks = tuple(rank for rank, flag in enumerate(flags) if flag)
    if ranks:
        yield Violation(where, "not executed", "executed at the load", "load", ranks=ranks)
    yield Measurement("ranks that ran the file's code", float(len(ranks)), 0.0)
