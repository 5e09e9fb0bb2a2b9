"""Whole epochs, stopped in their middle and at their edge, in the first one and in a later one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_cplife.adapter import LifecycleAdapter, TrainingRun
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, set_stage

LONGEST = 32
"""Steps of an epoch up to which epochs are trained; two of them, and again after each stop."""


def stops(adapter: LifecycleAdapter) -> tuple[tuple[int, ...], int]:
    """The steps after which a run of two epochs is saved, and its last step.

    The first epoch's middle, its edge, and the second one's middle; edges only, where a save is
    possible nowhere else. The last step is the first of the third epoch.

    Raises:
        ValueError: the epochs are unknown or too long; the message says so.
    """
    epoch = adapter.steps_per_epoch
    if epoch is None:
        raise ValueError("steps_per_epoch is not declared")
    if epoch > LONGEST:
        raise ValueError(f"steps_per_epoch is {epoch}; epochs are trained up to {LONGEST} steps")
    edges = {epoch}
    middles = {epoch // 2, epoch + epoch // 2} - {0}
    chosen = edges if adapter.save_points == "epoch_end" else edges | middles
    return tuple(sorted(chosen)), 2 * epoch + 1


def epochs(rank: Rank, order: Order) -> None:
    """Train through two epochs, step by step, and save at each stop on the way."""
    stage = set_stage(rank, order)
    try:
        points, end = stops(stage.adapter)
    except ValueError as reason:
        stage.recorder.absent(str(reason), "stops", "end")
        return
    stage.recorder.fact("stops", (points, end, stage.adapter.steps_per_epoch))
    run = stage.start()
    stage.align(0)
    for point in _train(stage, run, 0, points, end):
        stage.recorder.moment(f"at stop {point}", run)
        with stage.recorder.phase("save"):
            run.save(_place(stage.order.output, point, points))
    stage.recorder.moment("end", run)
    stage.close(run)


def epochs_resumed(rank: Rank, order: Order) -> None:
    """From each stop: load, and train to where the uninterrupted run ended."""
    stage = set_stage(rank, order)
    assert order.source is not None
    points, end = stops(stage.adapter)
    for point in points:
        run = stage.start()
        with stage.recorder.phase("load"):
            run.load(_place(order.source, point, points))
            run.ready()
        stage.recorder.moment(f"loaded from {point}", run)
        stage.align(_stretch(point, points))
        for _ in _train(stage, run, point, points, end):
            pass
        stage.recorder.moment(f"end from {point}", run)
        stage.close(run)


def _train(
    stage: Stage, run: TrainingRun, start: int, points: tuple[int, ...], end: int
) -> Iterator[int]:
    """Train from step `start` to step `end`, and give each stop on the way."""
    origin = f" from {start}" if start else ""
    for step in range(start + 1, end + 1):
        with stage.recorder.phase("train"):
            stage.recorder.train(f"step {step}{origin}", run, 1, values=False)
        if step in points:
            yield step
            # Streams are aligned at each stop, whether or not the run stops there.
            stage.align(_stretch(step, points))


def _place(path: Path, point: int, points: tuple[int, ...]) -> Path:
    """Where the save at `point` is; the first is the one that runs are told of."""
    return path if point == points[0] else path.with_name(f"{path.name}-{point}")


def _stretch(point: int, points: tuple[int, ...]) -> int:
    """The stretch of training after `point`; 0 to 2 are those of runs that stop once."""
    return 3 + points.index(point)
