"""SCHED: learning-rate schedules go on where they stopped."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.rules import epochs
from pytest_cplife.rules.case import Case, NotCovered
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
    yield from _same_values(expected, observed, "resumed")


def _same_values(
    expected: list[list[StepRecord]], observed: list[list[StepRecord]], label: str
) -> Iterator[Violation]:
    """Find steps that were made with other values than they are to be, per rank."""
    for rank, (a, b) in enumerate(zip(expected, observed, strict=True)):
        if len(a) != len(b):
            yield Violation("optimizer steps", f"{len(a)}", f"{len(b)}", label, ranks=(rank,))
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
                            f"{label}: step {number} after the load",
                            ranks=(rank,),
                            step=x.global_step + 1,
                        )


@rule(
    "SCHED-03",
    "milestones are met after a stop",
    statement="Through two epochs, and after a stop at each of several points, every step is made"
    " with the hyperparameters of the run that was not stopped, changes of them on the way"
    " included.",
    why="A milestone that is missed, or met twice, shows long after anybody looks at the resume.",
    cause="A milestone counted from the load, or whose key came back as another type.",
    runs=epochs.RUNS,
)
def milestones_met(case: Case) -> Iterator[Finding]:
    points, end, _ = epochs.stops(case)
    for point in points:
        expected, observed = epochs.steps_from(case, point)
        if point == points[0] and not any(map(_moves, expected)):
            raise NotCovered(f"no hyperparameter changes between steps {point} and {end}")
        yield from _same_values(expected, observed, f"stopped after step {point}")


def _moves(steps: list[StepRecord]) -> bool:
    values = [step.hyperparameters for step in steps if step.optimizer == steps[0].optimizer]
    return any(value != values[0] for value in values)


def _has_rest(case: Case) -> bool:
    return all("rest" in journal.steps for journal in case["uninterrupted"].ranks)
