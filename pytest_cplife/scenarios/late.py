"""A run that has come far: its optimizers' step counts are set to a late one, saved and loaded."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, set_stage

LATE = 1_000_003
"""Exact in float32, and in no float of less precision: bfloat16 is exact up to 256, float16 up to
2048. An integer of 16 bits does not hold it."""


def late(rank: Rank, order: Order) -> None:
    """Train to the save point, go on as if many steps had been made, save, and load."""
    stage = set_stage(rank, order)
    run = stage.start()
    stage.align(0)
    with stage.recorder.phase("train"):
        run.train(order.steps[0])
    if not _age(run):
        why = "no optimizer counts its steps in an entry of its state"
        stage.recorder.absent(why, "late", "late: after load")
        stage.close(run)
        return
    stage.recorder.moment("late", run)
    with stage.recorder.phase("save"):
        run.save(order.output)
    stage.close(run)
    _load(stage)


def _load(stage: Stage) -> None:
    run = stage.start()
    with stage.recorder.phase("load"):
        run.load(stage.order.output)
        run.ready()
    stage.recorder.moment("late: after load", run)
    stage.close(run)


@torch.no_grad()
def _age(run: TrainingRun) -> int:
    """Set what counts the optimizer's steps to a late step; how many entries that were."""
    aged = 0
    for optimizer in run.optimizers:
        for entries in optimizer.state.values():
            for key, value in entries.items():
                if not _counts(value, run.global_step):
                    continue
                aged += 1
                if isinstance(value, torch.Tensor):
                    (value.to_local() if isinstance(value, DTensor) else value).fill_(LATE)
                else:
                    entries[key] = LATE
    return aged


def _counts(value: object, steps: int) -> bool:
    """Whether an entry of an optimizer's state is a number and has counted all steps."""
    if isinstance(value, torch.Tensor):
        return value.ndim == 0 and value.dtype != torch.bool and value.item() == steps
    return type(value) is int and value == steps
