"""Faults that only the serial run's first step shows: all ranks make them alike."""

from __future__ import annotations

from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from pytest_cplife import RankContext, TrainingRun


@plant(
    fsdp2.Adapter, rule="OPT-09", subject="embed.weight[step]", mesh="fsdp=2", public=("B01", "B03")
)
class ExportsAtStart(fsdp2.Adapter):
    """The optimizer's state is asked for once at the start, to log its size: a hidden step."""

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        run = super().start_distributed(ctx)
        get_optimizer_state_dict(run.model, run.optimizers[0])
        return run


@plant(fsdp2.Adapter, rule="GRAD-08", subject="gain", mesh="fsdp=2", public=("B116",))
class ZeroGradientUnderDecay(fsdp2.Fsdp2Run):
    """A gradient is always zero, but weight decay moves the weight."""

    def reduce_gradients(self) -> None:
        grad = self.model.gain.grad
        assert grad is not None
        grad.zero_()


@plant(fsdp2.Adapter, rule="GRAD-08", subject="head.bias", mesh="fsdp=2", public=("B118", "B123"))
class ScaledGradient(fsdp2.Fsdp2Run):
    """One parameter's gradient is off by the size of a group, alike on all ranks."""

    def reduce_gradients(self) -> None:
        grad = self.model.head.bias.grad
        assert grad is not None
        grad.mul_(self.ctx.world_size)


@plant(fsdp2.Adapter, rule="GRAD-08", subject="embed.weight", mesh="fsdp=2", public=("B120",))
class LosesRows(fsdp2.Fsdp2Run):
    """The first row of each rank's shard of the embedding loses its gradient."""

    def reduce_gradients(self) -> None:
        grad: Any = self.model.embed.weight.grad
        grad.to_local()[:1].zero_()


@plant(
    fsdp2.Adapter, rule="GRAD-08", subject="embed.weight", mesh="fsdp=2", public=("B125", "B126")
)
class ClipsByLocalNorm(fsdp2.Fsdp2Run):
    """Each rank clips its shards by the norm of its own shards."""

    def reduce_gradients(self) -> None:
        grads: list[Any] = [p.grad for p in self.model.parameters() if p.grad is not None]
        shards = [grad.to_local() for grad in grads]
        norm = torch.stack([shard.square().sum() for shard in shards]).sum().sqrt()
        for shard in shards:
            shard.mul_(0.1 / (norm + 1e-6))
