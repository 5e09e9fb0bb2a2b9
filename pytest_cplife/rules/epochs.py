"""What the runs through whole epochs show, stretch by stretch, for the rules about them."""

from __future__ import annotations

from collections import Counter

from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.rules.case import Case

RUNS = ("epochs", "epochs resumed")


def stops(case: Case) -> tuple[tuple[int, ...], int, int]:
    """The steps after which the run was stopped, its last step, and the steps of an epoch."""
    points, end, epoch = case["epochs"].fact("stops")[0]
    return points, end, epoch


def samples(case: Case, start: int, first: int, last: int) -> Counter[int]:
    """How often each sample was taken, over all ranks, in the steps from `first` to `last`.

    Args:
        start: the stop from which the later steps are the resumed run's; 0 for no stop.
    """
    taken: Counter[int] = Counter()
    for step in range(first, last + 1):
        resumed = bool(start) and step > start
        name = f"sample_ids step {step}" + (f" from {start}" if resumed else "")
        for ids in case["epochs resumed" if resumed else "epochs"].fact(name):
            taken.update(ids)
    return taken


def steps_from(case: Case, point: int) -> tuple[list[list[StepRecord]], list[list[StepRecord]]]:
    """The optimizer steps from a stop to the end, per rank: without that stop, and with it."""
    _, end, _ = stops(case)
    names = [f"step {step}" for step in range(point + 1, end + 1)]
    resumed = [f"{name} from {point}" for name in names]
    return case["epochs"].steps(*names), case["epochs resumed"].steps(*resumed)
