"""SCHED: learning-rate schedules go on where they stopped."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import show
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.registry import rule


@rule(
    "SCHED-01",
    "schedulers come back",
    statement="After a load every entry of every scheduler's state is what it was when saved.",
    why="A schedule that restarts warms up again, or never decays.",
    cause="A scheduler that is no part of the file, or that is advanced once more while loading.",
    runs=("saving", "resumed"),
    events=("schedulers",),
)
def schedulers_return(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    yield from compare_parts(case, case["saving"], saved, loaded, "schedulers")


@rule(
    "SCHED-02",
    "the schedule goes on",
    statement="The hyperparameters in force at each step after a resume (lr, weight_decay, betas)"
    " are those of the uninterrupted run.",
    why="The lr that is used counts, not the one that is stored.",
    cause="A scheduler constructed after the load, one that holds other group objects than the"
    " optimizer, or a count that is off by one.",
    runs=("uninterrupted", "resumed"),
    events=("trainable parameters",),
)
def schedule_goes_on(case: Case) -> Iterator[Finding]:
    stretches = ("next", "rest") if _has_rest(case) else ("next",)
    expected = case["uninterrupted"].steps(*stretches)
    observed = case["resumed"].steps(*stretches)
    for rank, (a, b) in enumerate(zip(expected, observed, strict=True)):
        if len(a) != len(b):
            yield Violation("optimizer steps", f"{len(a)}", f"{len(b)}", "resumed", ranks=(rank,))
        for number, (x, y) in enumerate(zip(a, b, strict=False), start=1):
            for index, (before, after) in enumerate(
                zip(x.hyperparameters, y.hyperparameters, strict=False)
            ):
                for key in before:
                    if key not in after or before[key] != after[key]:
                        seen = show(after[key]) if key in after else "missing"
                        yield Violation(
                            f"optimizer {x.optimizer} group {index}: {key}",
                            show(before[key]),
                            seen,
                            f"resumed: step {number} after the load",
                            ranks=(rank,),
                            step=x.global_step + 1,
                        )


def _has_rest(case: Case) -> bool:
    return all("rest" in journal.steps for journal in case["uninterrupted"].ranks)
