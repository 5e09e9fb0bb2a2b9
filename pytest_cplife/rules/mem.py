"""MEM: what saving and loading cost in memory."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.weights import at_most_one_rank, every_rank


@rule(
    "MEM-01",
    "a save gathers on one rank",
    statement="During save() no more than one rank holds more than a few times the largest tensor"
    " over what it had before.",
    why="A model that is sharded because it does not fit cannot be gathered on every rank.",
    cause="A whole state dict gathered on all ranks, of which one is then written.",
    level="should",
    runs=("weighed",),
)
def save_gathers_once(case: Case) -> Iterator[Finding]:
    yield from completes(case, "MEM-01", "weighed")
    yield from at_most_one_rank(case, "save", "before save", own_state=False)


@rule(
    "MEM-02",
    "a plain load holds the file once",
    statement="During load() no more than one rank holds more than its own part of the state once"
    " over, and a few times the largest tensor; what lies in a mapped file does not count.",
    why="Eight ranks of a host that read one file need eight times its size, and are killed for"
    " it.",
    cause="torch.load without mmap=True on every rank, or a whole state broadcast at once.",
    level="should",
    runs=("weighed",),
)
def load_holds_once(case: Case) -> Iterator[Finding]:
    yield from completes(case, "MEM-02", "weighed")
    yield from at_most_one_rank(case, "load", "after load", own_state=True)


@rule(
    "MEM-03",
    "a sharded load holds a rank's own part",
    statement="During load_sharded() no rank holds more than its own part of the state once over,"
    " and a few times the largest tensor.",
    why="The format is for models that no rank can hold; a load has to be possible where the"
    " training is.",
    cause="Whole tensors as the template that the checkpoint is read into, sharded afterwards.",
    level="should",
    runs=("weighed",),
    needs=("save_sharded", "load_sharded"),
)
def sharded_load_is_local(case: Case) -> Iterator[Finding]:
    yield from completes(case, "MEM-03", "weighed")
    yield from every_rank(case, "load sharded", "after sharded load")
