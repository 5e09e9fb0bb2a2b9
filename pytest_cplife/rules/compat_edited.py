"""COMPAT: the same state in another order, type or grouping is mapped by what it is, or refused."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.records import Record
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import show
from pytest_cplife.rules.edited import accepted, right_or_refused
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule

_RUNS = ("saving", "legacy")


@rule(
    "COMPAT-09",
    "names decide, not the order",
    statement="A file whose optimizer state is keyed by name, with entries, groups and names in"
    " reverse order, gives every parameter its own state and its own group's values, or is"
    " refused.",
    why="Names are written to be read; a loader that counts instead mixes up moments that have one"
    " shape.",
    cause="Optimizer.load_state_dict, which goes by position also where keys are names.",
    runs=_RUNS,
    events=("optimizer state",),
)
def names_decide(case: Case) -> Iterator[Finding]:
    edit = "names in another order"
    yield from right_or_refused(case, "legacy", edit)
    if not any(case["legacy"].fact(edit)):
        saved, loaded = case["saving"].at("before save"), case["legacy"].at(f"{edit}: after")
        wanted = {name: group.values for group in saved.groups for name in group.names}
        yield from _options(case, edit, [wanted] * len(loaded.ranks))


@rule(
    "COMPAT-10",
    "another memory order loads by value",
    statement="A file in which every matrix is the transpose of a transposed one, so that its"
    " strides are others and its values are not, loads as without it.",
    why="Weights come from other tools, in another memory order; a copy of the bytes scrambles"
    " them.",
    cause="A send or a copy of storages instead of tensors, or a check of strides.",
    runs=(*_RUNS, "resumed"),
)
def memory_order(case: Case) -> Iterator[Finding]:
    yield from accepted(case, "legacy", "another memory order")


@rule(
    "COMPAT-11",
    "another dtype is converted or refused",
    statement="A file with weights of a wider type and the same values loads into the live"
    " parameters' own type, without a bit lost, or is refused.",
    why="Bytes that are read as another type are noise; a parameter that changes its type trains"
    " in another precision.",
    cause="Loading by assignment, or a buffer of the live type that is filled with the file's"
    " bytes.",
    runs=_RUNS,
)
def another_dtype(case: Case) -> Iterator[Finding]:
    yield from right_or_refused(case, "legacy", "another dtype")


@rule(
    "COMPAT-12",
    "other param groups are mapped or refused",
    statement="A file whose optimizer has a param group more, or one less, gives every parameter"
    " the values of the file's group that it is in, or is refused (keys that schedules set"
    " apart).",
    why="The last group's weight decay for all parameters is an error that no loss shows.",
    cause="Groups matched by position, or one live group overwritten by several of the file.",
    runs=_RUNS,
    events=("trainable parameters",),
)
def param_groups(case: Case) -> Iterator[Finding]:
    run = case["legacy"]
    edits = ("more param groups", "fewer param groups")
    offered = [edit for edit in edits if all(edit not in journal.absent for journal in run.ranks)]
    if not offered:
        run.fact(edits[0])  # Raises, with the reason.
    for edit in offered:
        yield from right_or_refused(case, "legacy", edit)
        if not any(run.fact(edit)):
            yield from _options(case, edit, run.fact(f"options of {edit}"))


@rule(
    "COMPAT-13",
    "one rank's part is not the whole",
    statement="A file whose model holds sharded DTensors, of which it has one rank's part, is"
    " refused, or loads as the values that all parts make up.",
    why="A shard that is taken for the whole trains on with the rest of each weight made up.",
    cause="to_local() on load, or a DTensor of the file put into the live model as this rank's.",
    runs=_RUNS,
)
def shards_in_the_file(case: Case) -> Iterator[Finding]:
    yield from right_or_refused(case, "legacy", "sharded dtensors")


def _options(
    case: Case, edit: str, wanted: list[dict[str, dict[str, Record]]]
) -> Iterator[Violation]:
    """Find parameters whose live group has other values than the file's group of that name."""
    loaded = case["legacy"].at(f"{edit}: after")
    for snapshot, options in zip(loaded.ranks, wanted, strict=True):
        for group in snapshot.groups:
            for name in group.names:
                for key, value in options.get(name, {}).items():
                    if key in group.values and group.values[key] != value:
                        yield Violation(
                            f"{name}: {key}",
                            show(value),
                            show(group.values[key]),
                            f"after {edit}",
                            ranks=(snapshot.rank,),
                        )
