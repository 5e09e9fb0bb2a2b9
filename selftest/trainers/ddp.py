"""DistributedDataParallel: plain parameters, and the optimizer's own integer-keyed state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.selftest.trainers.data import Part
from pytest_cplife.selftest.trainers.loop import LoopAdapter, LoopRun, moving_lr
from pytest_cplife.selftest.trainers.model import TinyNet
from pytest_cplife.selftest.trainers.named_state import check_sizes, plain
from torch.nn.parallel import DistributedDataParallel

from pytest_cplife import RankContext, TrainingRun

PREFIX = "module."


class DdpRun(LoopRun):
    """A run whose `network` is the wrapper and whose `model` is what it wraps."""

    network: DistributedDataParallel

    def export_model(self) -> dict[str, Any]:
        saved = self.network.state_dict()
        return {name.removeprefix(PREFIX): plain(value) for name, value in saved.items()}

    def restore_model(self, saved: dict[str, Any]) -> None:
        self.network.load_state_dict({PREFIX + name: value for name, value in saved.items()})

    def check_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        sizes = [len(group["params"]) for o in self.optimizers for group in o.param_groups]
        if [len(group["params"]) for state in saved for group in state["param_groups"]] != sizes:
            raise ValueError(f"the file's optimizer has not groups of {sizes} parameters")
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            live = [each for group in optimizer.param_groups for each in group["params"]]
            keys = [key for group in state["param_groups"] for key in group["params"]]
            for key, parameter in zip(keys, live, strict=True):
                check_sizes(key, state["state"].get(key, {}), parameter)

    def export_optimizers(self) -> list[Any]:
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        # By position, which is sound as long as one program builds the optimizer in one way.
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(dict(state))


class SerialRun(LoopRun):
    """The same file without the wrapper."""

    check_optimizers = DdpRun.check_optimizers
    export_optimizers = DdpRun.export_optimizers
    restore_optimizers = DdpRun.restore_optimizers


class Adapter(LoopAdapter):
    framework = "torch DDP"
    meshes = ("dp=1", "dp=2", "dp=4")
    plain_parameters = ("",)
    run_class: type[DdpRun] = DdpRun
    serial_run = SerialRun

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        # Given names, torch notes them in the groups beside the numbers that it saves.
        named = list(model.named_parameters())
        return [torch.optim.AdamW(named, lr=0.02, weight_decay=0.1, foreach=False)]

    def distribute(self, model: TinyNet) -> DistributedDataParallel:
        # Without this flag the first step of every process reduces gradients in buckets of
        # another order than the steps that follow, so that on four ranks a resumed run parts
        # from the uninterrupted one by rounding.
        return DistributedDataParallel(model, find_unused_parameters=True)

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        if not dist.is_initialized():
            raise RuntimeError("DDP needs an initialised process group")
        model = self.build_serial_model().to(ctx.device)
        network = self.distribute(model)
        optimizers = self.optimizers(model)
        schedulers = [moving_lr(each) for each in optimizers]
        part = Part(ctx.rank, ctx.world_size)
        return self.run_class(ctx, model, optimizers, schedulers, part, network)


class Rebucketing(Adapter):
    """torch's default: resumed and uninterrupted runs agree bitwise on two ranks, not on four."""

    bitwise_resume = False

    def distribute(self, model: TinyNet) -> DistributedDataParallel:
        return DistributedDataParallel(model)
