"""OPT: optimizer state that does not fit, or is not all there, is refused or has a meaning."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.edited import refused, right_or_refused, touched
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.save_silence import is_zero

_RUNS = ("saving", "refusing")


@rule(
    "OPT-10",
    "state of another size is refused",
    statement="A file in which one entry of optimizer state has a row too many ends load() in an"
    " exception on every rank.",
    why="It belongs to another weight, and is found at the next step at best; where it broadcasts,"
    " never.",
    cause="Optimizer.load_state_dict and set_optimizer_state_dict, which look at no shape.",
    level="should",
    runs=_RUNS,
    events=("optimizer state",),
)
def another_size(case: Case) -> Iterator[Finding]:
    yield from refused(case, "refusing", "optimizer state of another size")


@rule(
    "OPT-11",
    "missing state is refused or made anew",
    statement="A file without the optimizer state of one trained parameter is refused, or loads"
    " with that state absent or zero and all other state as it was saved; never with what was"
    " there before the load.",
    why="Moments of two runs in one optimizer are a state that no run has ever had.",
    cause="A load that updates the live state with the file's, instead of replacing it.",
    runs=_RUNS,
    events=("optimizer state",),
)
def missing_state(case: Case) -> Iterator[Finding]:
    run, edit = case["refusing"], "no state of one parameter"
    outcomes = run.fact(edit)
    name = touched(run, edit)
    own = {n for n in case["saving"].at("before save").optimizer_state if _of(n, name)}
    if any(outcomes):
        yield from right_or_refused(case, "refusing", edit)
        return
    after = run.at(f"{edit}: after")
    left = {n: records for n, records in after.optimizer_state.items() if _of(n, name)}
    yield from right_or_refused(case, "refusing", edit, without=own | left.keys())
    for entry, records in left.items():
        stale = tuple(rank for rank, record in enumerate(records) if not is_zero(run, record))
        if stale:
            yield Violation(entry, "absent or zero", "some state", f"after {edit}", ranks=stale)


def _of(entry: str, name: str) -> bool:
    return entry.startswith(f"{name}[")
