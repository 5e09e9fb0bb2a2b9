"""DCP: two saves in the background that overlap."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import those
from pytest_cplife.rules.generations import Generations, differences
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule


@rule(
    "DCP-27",
    "saves that overlap do not mix",
    statement="A save_sharded_async() that is begun while another one to the same path is being"
    " written waits for it or is refused on every rank; of the two, the last that was not refused"
    " is what load_sharded() gives back, whole.",
    why="A disk that is slow for an hour makes saves overlap, which they never did before.",
    cause="Nobody waits for the pending save: two writers share names, a folder or a group, or one"
    " save is told as done by the other's end.",
    level="should",
    runs=("begun", "begun again", "begun twice", "begun twice again"),
    needs=("save_sharded_async", "load_sharded"),
    presumes=("DCP-04",),
)
def overlapping_saves(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-27", "begun twice")
    run = case["begun twice"]
    outcomes = {name: run.fact(f"{name} save") for name in ("first", "second")}
    if not any(run.fact("writers held")):
        raise NotCovered("no thread beside the training's opens the files, so none was held")
    for name, told in outcomes.items():
        raising = tuple(rank for rank, outcome in enumerate(told) if outcome)
        if raising and len(raising) < len(told):
            others = [rank for rank in range(len(told)) if rank not in raising]
            seen = f"{told[raising[0]]}; none on {those(others)}"
            yield Violation(f"the {name} save", "an exception on all or none", seen, ranks=raising)
    saved = [name for name, told in outcomes.items() if not any(told)]
    loading = case["begun twice again"]
    if not saved and loading.held_back:
        return  # Both were refused, and nothing is there.
    yield from completes(case, "DCP-27", "begun twice again")
    # The second's state is the later one; a save that was told as made has to be there.
    names = ("generation 2",) if "second" in saved else ("generation 1", "generation 2")
    again = case["begun again"]
    lossy = differences(case, again, case["begun"].at("before save"), again.at("after load"))
    states = tuple(run.at(name) for name in names)
    generations = Generations(case, states, loading, frozenset(lossy))
    yield from generations.judge_load(
        "checkpoint", "after load", loading.fact("refused"), refusal_is_right=not saved
    )
