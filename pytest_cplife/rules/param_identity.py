"""PARAM: the objects that optimizers and ties hold are the live ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_cplife.evidence.records import TensorRecord, stranger_shape
from pytest_cplife.evidence.run import Moment
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.param import serial_tensors
from pytest_cplife.rules.registry import rule


def ties(tensors: Mapping[str, TensorRecord]) -> set[frozenset[str]]:
    """Sets of names of one and the same tensor object."""
    names: dict[int, set[str]] = {}
    for name, record in tensors.items():
        names.setdefault(record.identity, set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


@rule(
    "PARAM-07",
    "optimizers hold the live parameters",
    statement="Each trainable parameter of the model is, as the very same object, in exactly one"
    " param group, and no optimizer holds a tensor that is not the model's.",
    why="An optimizer over other objects steps in vain: the loss is finite and nothing learns.",
    cause="Building the optimizer before wrapping, or after a forward that exposed temporary"
    " tensors.",
    runs=("uninterrupted",),
    events=("trainable parameters",),
)
def optimizers_hold_live(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    if holds_flattened(run.at("start")):
        raise NotCovered(FLATTENED)
    for moment in ("start", "end"):
        yield from held_by_optimizers(run.at(moment))


FLATTENED = "the optimizer holds flattened parameters of its own"


def holds_flattened(state: Moment) -> bool:
    """Whether the optimizers hold nothing but tensors of their own (ZeRO), by design.

    A run that names its parameters or its optimizer state itself says that the suite would not find
    them by the identity of the model's parameters.
    """
    return all(
        snapshot.names_itself
        and any(group.names for group in snapshot.groups)
        and all(stranger_shape(name) for group in snapshot.groups for name in group.names)
        for snapshot in state.ranks
    )


def held_by_optimizers(state: Moment) -> Iterator[Violation]:
    """Find trainable parameters that are in no group or in several, and strangers in groups."""
    for snapshot in state.ranks:
        ranks = (snapshot.rank,)
        held = [name for group in snapshot.groups for name in group.names]
        tied = {name: set(group) for group in ties(snapshot.parameters) for name in group}
        for name, record in snapshot.parameters.items():
            count = sum(held.count(alias) for alias in tied.get(name, {name}))
            if count > 1 or (record.requires_grad and count == 0):
                yield Violation(
                    name, "in exactly one param group", f"in {count}", state.label, ranks=ranks
                )
        for shape in filter(None, map(stranger_shape, held)):
            yield Violation(
                f"a tensor of shape {shape}",
                "a live parameter of the model",
                "another object",
                state.label,
                ranks=ranks,
            )
        for shape in snapshot.state_names_stray:
            yield Violation(
                f"state of a tensor of shape {shape}",
                "state of a live parameter",
                "of another object",
                state.label,
                ranks=ranks,
            )


@rule(
    "PARAM-08",
    "ties mirror the serial model",
    statement="Names that share one tensor in the serial model share one in the live model, and"
    " no others do, at the start and after training.",
    why="A tie that broke gives two weights half their gradient each, and they part.",
    cause="Materialising or wrapping name by name, which gives each name a tensor of its own.",
    runs=("serial", "uninterrupted"),
)
def ties_mirror(case: Case) -> Iterator[Finding]:
    wanted = ties(serial_tensors(case, "parameters"))
    for moment in ("start", "end"):
        state = case["uninterrupted"].at(moment)
        for snapshot in state.ranks:
            yield from broken_ties(wanted, ties(snapshot.parameters), state, snapshot.rank)


def broken_ties(
    wanted: set[frozenset[str]], seen: set[frozenset[str]], state: Moment, rank: int
) -> Iterator[Violation]:
    """Find ties that are gone and ties that are new."""
    for group in sorted(wanted - seen, key=sorted):
        yield Violation(
            " = ".join(sorted(group)), "one tensor", "several", state.label, ranks=(rank,)
        )
    for group in sorted(seen - wanted, key=sorted):
        yield Violation(
            " = ".join(sorted(group)), "several tensors", "one", state.label, ranks=(rank,)
        )
