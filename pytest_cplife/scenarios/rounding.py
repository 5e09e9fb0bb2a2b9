"""What rounding alone can do to a run: one whose gradients are disturbed in their last bits.

A process that has just started may add up its first gradients in another order than one that
runs on (DDP rebuilds its buckets after a process's first step). Two uninterrupted runs agree
all the same, and a resumed run parts from them with nothing lost. How far it may is measured
on a run that never stopped: what a load forgets is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, set_stage
from pytest_cplife.scenarios.scripts import train_on, train_to_save_point


def nudged(rank: Rank, order: Order) -> None:
    """Train to the end without a save; from the save point on every gradient is nudged."""
    stage = set_stage(rank, order)
    run = stage.start()
    train_to_save_point(stage, run)
    stage.recorder.moment("at save point", run)
    with nudging(run):
        train_on(stage, run)
    stage.close(run)


@contextmanager
def nudging(run: TrainingRun) -> Iterator[None]:
    """Inside the block every optimizer step sees gradients that are off by a rounding error."""

    def before(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        for position, tensor in enumerate(tensors):
            if tensor.grad is not None:
                nudge(tensor.grad, position)

    handles = [optimizer.register_step_pre_hook(before) for optimizer in run.optimizers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def nudge(gradient: torch.Tensor, seed: int) -> None:
    """Add or take, element by element, one unit in the last place of the largest one.

    The error of a sum is that of its terms, which cancel: an element near zero is off by as much
    as a large one. Replicas get the same signs, and no stream of the trainer's is drawn from.
    """
    local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    if local.layout is not torch.strided or not local.is_floating_point() or not local.numel():
        return
    unit = torch.finfo(local.dtype).eps * local.abs().max()
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, local.shape, generator=generator).mul_(2).sub_(1)
    local.add_(signs.to(local.device, local.dtype) * unit)
