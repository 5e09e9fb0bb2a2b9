"""Faults with files whose state is the same in another order, type, grouping or cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import ddp, fsdp2, two_optimizers, versioned
from pytest_cplife.selftest.trainers.architecture import check_architecture
from pytest_cplife.selftest.trainers.loop import LoopRun
from pytest_cplife.selftest.trainers.model import TinyNet
from pytest_cplife.selftest.trainers.named_state import check_names, place_like
from torch import Tensor
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.tensor import DTensor

from pytest_cplife import RankContext, TrainingRun


@plant(
    fsdp2.Adapter,
    rule="COMPAT-09",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B20",),
)
class NamesByPosition(fsdp2.Fsdp2Run):
    """The file has names, and state is handed out in the order of the file all the same."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        (optimizer,) = self.optimizers
        live = [each for group in optimizer.param_groups for each in group["params"]]
        listed = [name for group in saved[0]["param_groups"] for name in group["params"]]
        for parameter, name in zip(live, listed, strict=True):
            entries = saved[0]["state"].get(name)
            if entries is not None:
                optimizer.state[parameter] = {
                    key: place_like(value.clone(), parameter) for key, value in entries.items()
                }


@plant(fsdp2.Adapter, rule="COMPAT-10", subject="embed.weight", mesh="fsdp=2", public=("B41",))
class SendsMemory(fsdp2.Fsdp2Run):
    """torch sends rank 0's tensors as they lie in memory, which the receivers take for rows."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        set_model_state_dict(self.model, dict(saved), options=fsdp2.SCATTER)


@plant(ddp.Adapter, rule="COMPAT-10", subject="another memory order", mesh="dp=2")
class ComparesStrides(ddp.DdpRun):
    """Strides are compared along with shapes, as if they were part of the value."""

    def check_file(self, payload: Mapping[str, Any]) -> None:
        super().check_file(payload)
        for name, live in self.model.state_dict().items():
            if payload["model"][name].stride() != live.stride():
                raise ValueError(f"{name} has strides {payload['model'][name].stride()}")


@plant(fsdp2.Adapter, rule="COMPAT-11", subject="gain", mesh="fsdp=2", public=("B146",))
class ReadsBytes(fsdp2.Fsdp2Run):
    """A buffer of the live type is filled with the file's bytes, whatever their type."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        live = self.model.state_dict()
        super().restore_model({name: self._read(v, live[name]) for name, v in saved.items()})

    def _read(self, value: Tensor, live: Tensor) -> Tensor:
        if value.dtype == live.dtype:
            return value
        raw = value.contiguous().flatten().view(live.dtype)
        return raw[: value.numel()].reshape(value.shape)


@plant(ddp.Adapter, rule="COMPAT-11", subject="gain", mesh="dp=2", public=("B146",))
class TakesTheFilesType(ddp.DdpRun):
    """Parameters take over the file's tensors, and with them their type."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        for name, parameter in self.model.named_parameters():
            parameter.data = parameter.data.to(saved[name].dtype)


@plant(fsdp2.Adapter, rule="COMPAT-12", subject="gain: weight_decay", mesh="fsdp=2")
class LastGroupWins(fsdp2.Fsdp2Run):
    """torch writes each of the file's groups into the live one that has its parameters."""

    def check_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        check_names(self.model, self.optimizers[0], saved[0])


@plant(
    two_optimizers.Adapter,
    rule="COMPAT-12",
    subject="blocks.0.down.weight: weight_decay",
    mesh="fsdp=2",
)
class GroupsByPosition(fsdp2.Fsdp2Run):
    """Groups are taken from the file one by one, and those beyond keep what they had."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        built = [[dict(group) for group in each.param_groups] for each in self.optimizers]
        LoopRun.restore_optimizers(self, saved)
        for optimizer, groups, state in zip(self.optimizers, built, saved, strict=True):
            for group, old in list(zip(optimizer.param_groups, groups, strict=True))[
                len(state["param_groups"]) :
            ]:
                group.update(old)


@plant(fsdp2.Adapter, rule="COMPAT-13", subject="blocks.0.up.weight", mesh="fsdp=2")
class ShardForTheWhole(fsdp2.Fsdp2Run):
    """Of a DTensor in the file the local part is copied to where it fits."""

    def check_file(self, payload: Mapping[str, Any]) -> None:
        check_architecture(payload["model"], self.model.state_dict())
        self.check_optimizers(payload["optimizers"])

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model({name: self._whole(value) for name, value in saved.items()})

    def _whole(self, value: Tensor) -> Tensor:
        if not isinstance(value, DTensor):
            return value
        local = value.to_local()
        whole = torch.zeros(value.shape, dtype=value.dtype)
        whole[: len(local)] = local
        return whole


@plant(ddp.Adapter, rule="OPT-10", subject="embed.weight[exp_avg]", mesh="dp=2")
class AnySize(ddp.DdpRun):
    """Groups are counted, and no entry's shape is looked at; nor does torch."""

    def check_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        pass


@plant(fsdp2.Adapter, rule="OPT-11", subject="head.bias[exp_avg]", mesh="fsdp=2", public=("B14",))
class UpdatesTheState(fsdp2.Fsdp2Run):
    """The file's state is put over the live one, which stays where the file has none."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        before = [dict(optimizer.state) for optimizer in self.optimizers]
        LoopRun.restore_optimizers(self, saved)
        for optimizer, kept in zip(self.optimizers, before, strict=True):
            optimizer.state.update({**kept, **optimizer.state})


@plant(ddp.Adapter, rule="LOAD-15", subject="gain", mesh="dp=2")
class ReadsForItself(ddp.DdpRun):
    """Every rank reads the file that it finds, and nobody compares."""

    def check_agreement(self, path: Path) -> None:
        pass


@plant(fsdp2.Adapter, rule="LOAD-15", subject="blocks.0.up.bias", mesh="fsdp=2")
class ShardsOfTwoFiles(fsdp2.Fsdp2Run):
    """Every rank cuts its shards out of the file that it finds; no two ranks hold the same."""

    def check_agreement(self, path: Path) -> None:
        pass

    def restore_model(self, saved: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, live in self.model.state_dict().items():
                live.copy_(place_like(saved[name], live))


@plant(ddp.Adapter, rule="SAVE-14", subject="optimizer 0", mesh="dp=2", public=("B20",))
class NumbersOnly(ddp.Adapter):
    """The optimizer is built from bare parameters, and its file says of none whose state it is."""

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)]

    def start_serial(self, ctx: RankContext) -> TrainingRun:
        raise NotImplementedError("not asked for")


@plant(versioned.Adapter, rule="SAVE-15", subject="norm: version", mesh="fsdp=2")
class ForgetsVersions(versioned.Fsdp2Run):
    """The state dict is copied into a plain one, without its attribute."""

    def export_model(self) -> dict[str, Any]:
        return dict(super().export_model())
