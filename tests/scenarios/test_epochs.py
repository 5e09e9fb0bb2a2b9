"""Where epochs are stopped, and which are too long to be trained."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_cplife.selftest.trainers.fsdp2 import Adapter

from pytest_cplife.scenarios.epochs import LONGEST, stops


@pytest.mark.parametrize(
    ("steps", "points", "expected"),
    [
        (4, "any", ((2, 4, 6), 9)),
        (1, "any", ((1,), 3)),
        (5, "any", ((2, 5, 7), 11)),
        (4, "epoch_end", ((4,), 9)),
    ],
)
def test_stops_are_in_the_middle_and_at_the_edge(steps: int, points: Any, expected: Any) -> None:
    adapter = Adapter()
    adapter.steps_per_epoch, adapter.save_points = steps, points
    assert stops(adapter) == expected


@pytest.mark.parametrize("steps", [None, LONGEST + 1])
def test_epochs_that_are_not_trained(steps: int | None) -> None:
    adapter = Adapter()
    adapter.steps_per_epoch = steps  # type: ignore[assignment]
    with pytest.raises(ValueError, match="steps_per_epoch is"):
        stops(adapter)
