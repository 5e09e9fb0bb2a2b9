"""LOAD: each of several checkpoints comes back as itself, also where newer ones lie beside it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules import epochs
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import RESTORED, Finding
from pytest_cplife.rules.parts import PARTS, carried, compare_parts
from pytest_cplife.rules.registry import rule


@rule(
    "LOAD-19",
    "each of several checkpoints comes back",
    statement="Of checkpoints that were saved beside one another, in the middle of epochs and at"
    " their edge, each gives back the state that it was saved with, all of it.",
    why="Who goes back behind a bad step gets the weights of one step and the counters of another.",
    cause="What is read from the newest checkpoint instead of the one that was asked for, or a"
    " position at the end of an epoch that a load moves on.",
    runs=epochs.RUNS,
    presumes=(*RESTORED, "LOAD-16"),
)
def each_returns(case: Case) -> Iterator[Finding]:
    points, _, _ = epochs.stops(case)
    for point in points:
        saved = carried(case["epochs"].at(f"at stop {point}"))
        loaded = case["epochs resumed"].at(f"loaded from {point}")
        label = f"epochs resumed: loaded from step {point}"
        yield from compare_parts(case, case["epochs"], saved, loaded, *PARTS, moment=label)
