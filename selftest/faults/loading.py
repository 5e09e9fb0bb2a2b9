"""Faults of a load: LOAD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import ddp, fsdp2
from torch import nn
from torch.distributed.tensor import distribute_tensor


@plant(fsdp2.Adapter, rule="LOAD-01", subject="load (resumed)", mesh="fsdp=2")
class PlainIntoDTensor(fsdp2.Fsdp2Run):
    """Plain tensors are offered to DTensor parameters."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved)


@plant(
    fsdp2.Adapter,
    rule="LOAD-02",
    subject="norm.weight",
    mesh="fsdp=2",
    public=("B48",),
    likely="those of a fresh start",
)
class SkipsAKey(fsdp2.Fsdp2Run):
    """A mismatch is put down in a log that nobody reads, and the load goes on."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        live = self.model.norm.weight.full_tensor().detach()
        super().restore_model(saved | {"norm.weight": live})


@plant(
    fsdp2.Adapter,
    rule="LOAD-02",
    subject="head.bias",
    mesh="fsdp=2",
    public=("B146",),
    likely="rounded to bfloat16",
)
class RoundsWeights(fsdp2.Fsdp2Run):
    """The file is read into a template of less precision."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved | {"head.bias": saved["head.bias"].bfloat16().float()})


@plant(
    fsdp2.Adapter,
    rule="LOAD-02",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B158",),
    likely="only rank 0 has what was saved",
)
class CopyOfTheBroadcast(fsdp2.Fsdp2Run):
    """Ranks above 0 receive the weights in a buffer that is not copied back."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        before = [p.to_local().clone() for p in self.model.parameters()]
        super().restore_model(saved)
        if self.ctx.rank:
            with torch.no_grad():
                for parameter, value in zip(self.model.parameters(), before, strict=True):
                    parameter.to_local().copy_(value)


@plant(
    fsdp2.Adapter,
    rule="LOAD-02",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B31",),
    likely="every rank holds what rank 0 had",
)
class RankZerosShard(fsdp2.Fsdp2Run):
    """Every rank cuts the full tensor as if it were the first."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        if self.ctx.rank:
            with torch.no_grad():
                local = self.model.embed.weight.to_local()
                local.copy_(saved["embed.weight"][: local.shape[0]])


@plant(
    Reference,
    rule="LOAD-02",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B105",),
    likely="the saved averages",
)
class LoadsTheAverage(Trainer):
    """The averaged weights are loaded as the live ones."""

    def load(self, path: Path) -> None:
        super().load(path)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.ema.shadow[name])


@plant(Reference, rule="LOAD-02", subject="blocks.0.mlp.up.bias", mesh="fsdp=2", public=("B47",))
class CopiesWhatOverlaps(Trainer):
    """A loader copies the rows that file and template share, here all but the last."""

    def load(self, path: Path) -> None:
        bias = self.model.get_parameter("blocks.0.mlp.up.bias")
        before = bias.full_tensor().detach().clone()  # type: ignore[attr-defined]
        super().load(path)
        with torch.no_grad():
            full = bias.full_tensor().detach()  # type: ignore[attr-defined]
            full[-1] = before[-1]
            bias.copy_(distribute_tensor(full, bias.device_mesh, bias.placements))  # type: ignore


@plant(fsdp2.Adapter, rule="LOAD-03", subject="frequency", mesh="fsdp=2", public=("B159",))
class AssignsFromFile(fsdp2.Fsdp2Run):
    """A buffer is assigned from the file and is then of the file's kind."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        mesh = self.ctx.mesh
        self.model.frequency = distribute_tensor(saved["frequency"], mesh, src_data_rank=None)


@plant(fsdp2.Adapter, rule="LOAD-03", subject="gain", mesh="fsdp=2", public=("B159",))
class ReplacesDTensor(fsdp2.Fsdp2Run):
    """load_state_dict(assign=True) puts plain tensors where DTensors were."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        self.model._parameters["gain"] = nn.Parameter(saved["gain"])


@plant(
    fsdp2.Adapter,
    rule="LOAD-04",
    subject="frequency",
    mesh="fsdp=2",
    public=("B58",),
    likely="only rank 0 has what was saved",
)
class BuffersOnRankZero(fsdp2.Fsdp2Run):
    """Buffers are filled on rank 0 and never sent to the others."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        before = self.model.frequency.clone()
        super().restore_model(saved)
        if self.ctx.rank:
            self.model.frequency.copy_(before)


@plant(
    Reference,
    rule="LOAD-04",
    subject="forwards",
    mesh="cp=2",
    public=("B56",),
    likely="those of a fresh start",
)
class BuffersLeftOut(Trainer):
    """A buffer does not come back."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.model.forwards.zero_()  # type: ignore[union-attr, operator]


@plant(fsdp2.Adapter, rule="LOAD-05", subject="shift", mesh="fsdp=2")
class ThawsAtLoad(fsdp2.Fsdp2Run):
    """A frozen parameter is made again with the default requires_grad."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        self.model.shift.requires_grad_(True)


@plant(Reference, rule="LOAD-05", subject="prior", mesh="cp=2", public=("B146",))
class FilesDtype(Trainer):
    """A parameter takes the dtype that the file was cast to."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.model.prior.data = self.model.prior.data.bfloat16()  # type: ignore[union-attr]


@plant(
    fsdp2.Adapter,
    rule="LOAD-06",
    subject="embed.weight = head.weight",
    mesh="fsdp=2",
    public=("B52",),
)
class UntiesAtLoad(fsdp2.Fsdp2Run):
    """Both names are loaded, each into a tensor of its own."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        copy = self.model.embed.weight.detach().clone()
        self.model.head._parameters["weight"] = nn.Parameter(copy)


@plant(fsdp2.Adapter, rule="LOAD-06", subject="norm.weight", mesh="fsdp=2", public=("B24",))
class OptimizerOfOldParameters(fsdp2.Fsdp2Run):
    """A parameter is made anew by the load, and the optimizer keeps the old one."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        copy = self.model.norm.weight.detach().clone()
        self.model.norm._parameters["weight"] = nn.Parameter(copy)


@plant(ddp.Adapter, rule="GO-02", subject="norm.weight", mesh="dp=2")
class ReducerOfOldParameters(ddp.DdpRun):
    """A load makes a parameter anew and tells the optimizer, but not the wrapper that reduces."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        (optimizer,) = self.optimizers
        old = self.model.norm.weight
        self.model.norm.weight = new = nn.Parameter(old.detach().clone())
        for group in optimizer.param_groups:
            group["params"] = [new if each is old else each for each in group["params"]]
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


@plant(ddp.Adapter, rule="LOAD-20", subject="blocks.0.up.weight", mesh="dp=2")
class TakesTheFilesOrder(ddp.DdpRun):
    """A weight takes over the memory of the file's tensor, which lies transposed there."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        weight = self.model.blocks[0].up.weight
        weight.data = weight.data.t().contiguous().t()


@plant(ddp.Adapter, rule="LOAD-20", subject="norm.weight", mesh="dp=2")
class TakesColumns(ddp.DdpRun):
    """A norm's scale and shift become columns of the matrix in which a file keeps them."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        norm = self.model.norm
        scale, shift = torch.stack([norm.weight.data, norm.bias.data], dim=1).unbind(dim=1)
        norm.weight.data, norm.bias.data = scale, shift
