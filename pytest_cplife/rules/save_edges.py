"""SAVE: values at the edges of a dtype reach the file, and come back from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pytest_cplife.evidence.assemble import Assembler, CannotAssemble
from pytest_cplife.evidence.records import Record, TensorRecord
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import Table, compare
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.registry import rule

_RUN = "relayed again"


@rule(
    "SAVE-17",
    "edge values survive a save and a load",
    statement="Weights that hold -0.0, subnormal numbers and the largest ones of their dtype are"
    " bit for bit the same in the file, and after a load of it.",
    why="What changes a value that training seldom meets changes a bit on the day that it does, and"
    " nobody can tell why a resumed run has parted.",
    cause="A whole that is gathered by adding up parts padded with zeros, values that are clamped"
    " or sanitised, a text format, or subnormals that are flushed.",
    level="should",
    runs=(_RUN,),
    presumes=("SAVE-05", "LOAD-02"),
)
def edges_survive(case: Case) -> Iterator[Finding]:
    run = case[_RUN]
    file = run.file("edges").model
    inside: Table = {name: [record] for name, record in file.items()}
    if not _written(case, inside):
        raise NotCovered("the trainer saves its weights from copies of its own")
    yield from _survive(case, inside, "file of edge values")
    if not any("edges loaded" in journal.absent for journal in run.ranks):
        loaded = run.at("edges loaded")
        yield from _survive(case, loaded.parameters, loaded.label)


def _survive(case: Case, seen: Table, moment: str) -> Iterator[Finding]:
    put, names = case[_RUN].at("edges").parameters, _written(case, seen)
    wanted, found = ({name: table[name] for name in names} for table in (put, seen))
    assembler = case[_RUN].assembler
    yield from compare(case, assembler, "edge values", wanted, found, moment=moment)


def _written(case: Case, seen: Table) -> list[str]:
    """The weights that were overwritten, but for those of which `seen` has what was before.

    These are made from a copy that the trainer has, such as a master.
    """
    run = case[_RUN]
    before, put = run.at("after load").parameters, run.at("edges").parameters
    same = partial(_same, run.assembler)
    return [
        name
        for name in put
        if name in seen and not same(put[name], before[name]) and not same(seen[name], before[name])
    ]


def _same(assembler: Assembler, one: Sequence[Record], other: Sequence[TensorRecord]) -> bool:
    records = [record for record in one if isinstance(record, TensorRecord)]
    try:
        return bool(records) and assembler.digest(records) == assembler.digest(other)
    except CannotAssemble:
        return False
