"""DCP: what a run that was resumed from a sharded checkpoint saves sharded in its turn."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule


@rule(
    "DCP-25",
    "a second sharded checkpoint holds live values",
    statement="A run that was resumed by load_sharded(), went on and saved sharded again comes back"
    " from that second checkpoint, in other processes, as it was when it saved: weights, buffers,"
    " optimizer state, averages, hyperparameters, schedulers, counters and extra state, bit for"
    " bit.",
    why="The first resume is right, and the second goes back to where the first began.",
    cause="A dictionary of state that the load fills and the next save writes, in which what is no"
    " tensor is a copy; or progress that is counted from the load.",
    runs=("unsharding", "unsharding again"),
    needs=("save_sharded", "load_sharded"),
    presumes=("DCP-04",),
)
def second_sharded_generation(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-25", "unsharding", "unsharding again")
    saved = case["unsharding"].at("before second save")
    loaded = case["unsharding again"].at("after load")
    run = case["unsharding again"]
    yield from compare_parts(case, run, saved, loaded)
    yield from compare_parts(case, run, saved, loaded, "extra state")
