"""Faults of the adapter and of the start: ADAPTER and PLACE."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.model import TinyNet
from torch import nn
from torch.distributed.fsdp import fully_shard

from pytest_cplife import RankContext, TrainingRun


class Wrapping(fsdp2.Adapter):
    """Base of faults in what the model looks like before and after it is sharded."""

    def before(self, model: TinyNet, ctx: RankContext) -> None:
        """Spoil the serial model."""

    def after(self, model: TinyNet, ctx: RankContext) -> None:
        """Spoil the sharded one."""

    def wrap(self, module: nn.Module, ctx: RankContext) -> TinyNet:
        assert isinstance(module, TinyNet)
        self.before(module, ctx)
        model = super().wrap(module, ctx)
        self.after(model, ctx)
        return model


@plant(fsdp2.Adapter, rule="ADAPTER-01", subject="adapter", mesh="fsdp=2")
class UnknownPolicy(fsdp2.Adapter):
    """An attribute has a value that the protocol does not know."""

    rng_policy = "sometimes"  # type: ignore[assignment]


@plant(fsdp2.Adapter, rule="PLACE-01", subject="start (uninterrupted)", mesh="fsdp=2")
class BranchesAtStart(fsdp2.Adapter):
    """One rank meets a branch that the others do not, and raises."""

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        if ctx.rank == 1:
            raise ValueError("unknown mesh dimension 'fsdp'")
        return super().start_distributed(ctx)


@plant(fsdp2.Adapter, rule="PLACE-02", subject="gain", mesh="fsdp=2")
class ForgottenParameter(fsdp2.Adapter):
    """The wrapping code leaves a parameter out, and it stays plain."""

    def wrap(self, module: nn.Module, ctx: RankContext) -> TinyNet:
        assert isinstance(module, TinyNet)
        return fully_shard(module, mesh=ctx.mesh, ignored_params={module.gain})


@plant(fsdp2.Adapter, rule="PLACE-03", subject="frequency", mesh="fsdp=2")
class RankDependentCast(Wrapping):
    """Code that depends on the rank gives one of them a buffer of another dtype."""

    def after(self, model: TinyNet, ctx: RankContext) -> None:
        if ctx.rank == 1:
            model.frequency = model.frequency.double()


@plant(
    fsdp2.Adapter,
    rule="PLACE-04",
    subject="blocks.0.up.weight[spare]",
    mesh="fsdp=2",
    public=("B39",),
)
class CeilSizedState(fsdp2.Fsdp2Run):
    """State is allotted in the rounded-up local size on every rank, wrong for the short last."""

    def update(self) -> None:
        super().update()
        weight = self.model.blocks[0].up.weight
        rows = -(-weight.shape[0] // self.ctx.world_size)
        spare = torch.distributed.tensor.DTensor.from_local(
            torch.zeros(rows, weight.shape[1]),
            weight.device_mesh,
            weight.placements,
            run_check=False,
            shape=weight.shape,
            stride=weight.stride(),
        )
        self.optimizers[0].state[weight]["spare"] = spare


@plant(fsdp2.Adapter, rule="PLACE-05", subject="start()", mesh="fsdp=2")
class GoesOnAlone(fsdp2.Adapter):
    """Without a process group the run is silently a single-device one."""

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        if not dist.is_initialized():
            return self.start_serial(dataclasses.replace(ctx, spec=None))
        return super().start_distributed(ctx)


@plant(fsdp2.Adapter, rule="PLACE-06", subject="seen", mesh="fsdp=2")
class MetaBuffer(Wrapping):
    """The code that materialises the model from the meta device leaves out a buffer."""

    def after(self, model: TinyNet, ctx: RankContext) -> None:
        model.seen = model.seen.to("meta")


@plant(
    fsdp2.Adapter, rule="ADAPTER-02", subject="MisspelledPrefixes.plain_parameter", mesh="fsdp=1"
)
class MisspelledPrefixes(fsdp2.Adapter):
    """A declaration lacks its last letter."""

    plain_parameter = ("shift",)


@plant(fsdp2.Adapter, rule="ADAPTER-02", subject="MisspelledSave.saev", mesh="fsdp=1")
class MisspelledSave(fsdp2.Fsdp2Run):
    """A method that was meant to replace the one it inherits has another name."""

    def saev(self, path: Path) -> None: ...


@plant(
    fsdp2.Adapter, rule="ADAPTER-02", subject="MisspelledCapability.named_extra_sate", mesh="fsdp=1"
)
class MisspelledCapability(fsdp2.Fsdp2Run):
    """A capability has one letter too few in its name."""

    def named_extra_sate(self) -> Mapping[str, object]:
        return {"patience": 3}
