"""Faults that no rule is there for yet: what the suite has to learn to see.

They are planted without a rule; ``python -m tests.faults unseen`` shows what fails all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from pytest_cplife import RankContext, TrainingRun
from tests.faults.planting import plant
from tests.trainers import fsdp2
from tests.trainers.streams import seed_streams


@plant(fsdp2.Adapter, rule="", subject="embed.weight[step]", mesh="fsdp=2", public=("B01", "B03"))
class ExportsAtStart(fsdp2.Adapter):
    """The optimizer's state is asked for once at the start, to log its size: a hidden step."""

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        run = super().start_distributed(ctx)
        get_optimizer_state_dict(run.model, run.optimizers[0])
        return run


@plant(fsdp2.Adapter, rule="", subject="gain", mesh="fsdp=2", public=("B116",))
class ZeroGradientUnderDecay(fsdp2.Fsdp2Run):
    """A gradient is always zero, but weight decay moves the weight."""

    def reduce_gradients(self) -> None:
        grad = self.model.gain.grad
        assert grad is not None
        grad.zero_()


@plant(fsdp2.Adapter, rule="", subject="head.bias", mesh="fsdp=2", public=("B118", "B123"))
class ScaledGradient(fsdp2.Fsdp2Run):
    """One parameter's gradient is off by the size of a group, alike on all ranks."""

    def reduce_gradients(self) -> None:
        grad = self.model.head.bias.grad
        assert grad is not None
        grad.mul_(self.ctx.world_size)


@plant(fsdp2.Adapter, rule="", subject="embed.weight", mesh="fsdp=2", public=("B120",))
class LosesRows(fsdp2.Fsdp2Run):
    """The first row of each rank's shard of the embedding loses its gradient."""

    def reduce_gradients(self) -> None:
        grad: Any = self.model.embed.weight.grad
        grad.to_local()[:1].zero_()


@plant(fsdp2.Adapter, rule="", subject="embed.weight", mesh="fsdp=2", public=("B125", "B126"))
class ClipsByLocalNorm(fsdp2.Fsdp2Run):
    """Each rank clips its shards by the norm of its own shards."""

    def reduce_gradients(self) -> None:
        grads: list[Any] = [p.grad for p in self.model.parameters() if p.grad is not None]
        shards = [grad.to_local() for grad in grads]
        norm = torch.stack([shard.square().sum() for shard in shards]).sum().sqrt()
        for shard in shards:
            shard.mul_(0.1 / (norm + 1e-6))


@plant(fsdp2.Adapter, rule="", subject="model", mesh="fsdp=2", public=("B55",))
class FlatFile(fsdp2.Fsdp2Run):
    """The file's tensors are views of one buffer, which later tools take for tied."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        floats = {k: v for k, v in saved.items() if v.dtype == torch.float32}
        if floats:
            flat = torch.cat([value.flatten() for value in floats.values()])
            parts = flat.split([value.numel() for value in floats.values()])
            pairs = zip(floats.items(), parts, strict=True)
            saved |= {name: part.view_as(value) for (name, value), part in pairs}
        return saved


@plant(fsdp2.Adapter, rule="", subject="torch random stream", mesh="fsdp=2", public=("B84",))
class OneStreamUntilLoad(fsdp2.Fsdp2Run):
    """All ranks draw the same noise until the first resume."""

    def seed(self) -> None:
        rank = self.ctx.rank if self.global_step else 0
        seed_streams(self.ctx.seed, rank, self.epoch, self.global_step)


@plant(fsdp2.Adapter, rule="", subject="sample ids", mesh="fsdp=2", public=("B87",))
class ForgetsLaterEpochs(fsdp2.Fsdp2Run):
    """A resume finds its place within the first epoch, and in later ones takes that for it."""

    _offset = 0

    def data_step(self) -> int:
        return self.global_step - self._offset

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(payload)
        self._offset = self.epoch * self.steps_per_epoch


@plant(fsdp2.Adapter, rule="", subject="embed.weight[step]", mesh="fsdp=2", public=("B155",))
class RoundsLateSteps(fsdp2.Fsdp2Run):
    """Step counts take a way through bfloat16, which is exact up to 256."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        for entries in self.optimizers[0].state.values():
            step: Tensor = entries["step"]
            entries["step"] = step.bfloat16().float()
