"""Evaluating on the way: predictions, and averaged weights swapped in and out."""

from __future__ import annotations

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.scripts import train_to_save_point

_SWAP = ("averages in", "averages out", "after inference mode", "after an exception", "exception")


class Interrupted(Exception):
    """What the suite raises inside an evaluation, to see what is left behind."""


def evaluated(rank: Rank, order: Order) -> None:
    """Train, predict, swap the averaged weights in and out, also by way of an exception."""
    stage = set_stage(rank, order)
    run = stage.start()
    train_to_save_point(stage, run)
    stage.recorder.moment("before evaluation", run)
    stage.predict("prediction", run)
    stage.recorder.moment("after prediction", run)
    if run.ema is None:
        why = "the run has no averaged weights (TrainingRun.ema is None)"
        stage.recorder.absent(why, *_SWAP)
    elif "ema_weights" not in stage.offered(run):
        stage.recorder.absent("capability ema_weights is not offered", *_SWAP)
    else:
        _swap(stage, run)
    stage.close(run)


def _swap(stage: Stage, run: TrainingRun) -> None:
    recorder = stage.recorder
    with recorder.phase("swap"):
        with run.ema_weights():
            recorder.moment("averages in", run)
            run.save(stage.order.output)
        recorder.moment("averages out", run)
    with recorder.phase("swap under inference mode"):
        with torch.inference_mode(), run.ema_weights():
            pass
        recorder.moment("after inference mode", run)
    with recorder.phase("interrupted swap"):
        recorder.fact("exception", _interrupt(run))
        recorder.moment("after an exception", run)
    with recorder.phase("step after swaps"):
        stage.align(1)
        recorder.train("next", run, 1)
    recorder.moment("after next step", run)
    if stage.rank.rank == 0:
        with recorder.phase("read"):
            view = stage.adapter.read_checkpoint(stage.order.output)
        stage.file("saved inside", stage.order.output, view)


def _interrupt(run: TrainingRun) -> str:
    """What becomes of an exception that is raised while the averages are in."""
    passed = False
    try:
        with run.ema_weights():
            raise Interrupted
    except Interrupted:
        passed = True
    return "passed on" if passed else "swallowed"
