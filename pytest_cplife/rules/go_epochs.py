"""GO: stops in the middle and at the edge of epochs, in the first one and in a later one."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules import epochs
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule


@rule(
    "GO-16",
    "stops within and between epochs",
    statement="A run that is stopped in the middle of an epoch or at its edge, in the first epoch"
    " or the second, ends after two epochs as the one that was not: weights, buffers, optimizer"
    " state, averages, hyperparameters, schedulers and counters.",
    why="A stop comes when it comes; what is right in the first epoch may count from its start"
    " ever after.",
    cause="A position within the epoch taken for the step, state of an epoch that is made at its"
    " first step only, or an edge that is crossed twice.",
    runs=epochs.RUNS,
    budgeted=True,
)
def stops_in_epochs(case: Case) -> Iterator[Finding]:
    yield from completes(case, "GO-16", *epochs.RUNS)
    if case.noise.by_subject:
        # Measured over other steps than these.
        raise NotCovered("two trainings of this trainer are not equal bit for bit")
    points, _, _ = epochs.stops(case)
    wanted = case["epochs"].at("end")
    for point in points:
        seen = case["epochs resumed"].at(f"end from {point}")
        label = f"stopped after step {point}: end"
        yield from compare_parts(case, case["epochs"], wanted, seen, moment=label)
