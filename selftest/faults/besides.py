"""Faults of what comes beside a resume: transfers, conversions, placement plans, extra state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.adapter import Run as ReferenceRun
from pytest_cplife.reference_impl.plain import map_leaves
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import finetune, fsdp2
from pytest_cplife.selftest.trainers.model import TinyNet
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.optim.lr_scheduler import MultiStepLR

from pytest_cplife import RankContext, TrainingRun


@plant(finetune.Adapter, rule="LOAD-17", subject="norm.weight", mesh="fsdp=2", public=("B48",))
class ZerosTheMissing(finetune.Adapter):
    """What the file lacks is made anew instead of left alone."""

    def fill(self, rest: dict[str, Any]) -> dict[str, Any]:
        return {name: torch.zeros_like(value) for name, value in rest.items()}


@plant(Reference, rule="LOAD-17", subject="global_step", mesh="cp=2")
class ResumesInDisguise(Reference):
    """A transfer is a resume under another name: counters and moments come along."""

    def load_pretrained(self, run: TrainingRun, path: Path) -> None:
        run.load(path)


@plant(finetune.Adapter, rule="LOAD-18", subject="weights", mesh="fsdp=2", public=("B48",))
class TakesAnything(finetune.Adapter):
    """strict=False, and nobody asks how much of the file was of any use."""

    def check(
        self, saved: Mapping[str, Any], shared: Mapping[str, Tensor], live: Mapping[str, Tensor]
    ) -> None:
        super().check(saved, {**live, **shared}, live)


@plant(Reference, rule="SAVE-16", subject="positions", mesh="cp=2")
class AliasesWhatIsPlain(Reference):
    """cpu() copies nothing where a tensor is on the CPU already."""

    def to_plain(self, tree: Any) -> Any:
        return map_leaves(
            tree,
            lambda leaf: (
                leaf.full_tensor().clone()
                if isinstance(leaf, DTensor)
                else leaf.detach().cpu()
                if isinstance(leaf, Tensor)
                else leaf
            ),
        )


@plant(Reference, rule="SAVE-16", subject="model['scale']", mesh="cp=2")
class ConvertsInPlace(Reference):
    """The caller's own dict gets the plain tensors."""

    def to_plain(self, tree: Any) -> Any:
        plain = super().to_plain(tree)
        tree["model"].update(plain["model"])
        return plain


@plant(fsdp2.Adapter, rule="PLACE-07", subject="blocks.0.up.weight", mesh="fsdp=1")
class CutsColumns(fsdp2.Adapter):
    """Matrices are cut along their second dimension, which nobody has planned."""

    def wrap(self, module: nn.Module, ctx: RankContext) -> TinyNet:
        assert isinstance(module, TinyNet)
        for block in module.blocks:
            fully_shard(
                block,
                mesh=ctx.mesh,
                shard_placement_fn=lambda each: Shard(1) if each.ndim > 1 else None,
            )
        return fully_shard(module, mesh=ctx.mesh)


@plant(Reference, rule="LOAD-16", subject="data.position", mesh="cp=2", public=("B96",))
class ForgetsPosition(ReferenceRun):
    """What the run tells besides is read from an object that the load does not reach."""

    _made = 0

    def named_extra_state(self) -> Mapping[str, object]:
        return {"data": {"epoch": self.trainer.epoch, "position": self._made}}

    def train(self, num_steps: int) -> list[float]:
        self._made += num_steps
        return super().train(num_steps)


@plant(
    fsdp2.Adapter,
    rule="SCHED-01",
    subject="scheduler 0: milestones[4]",
    mesh="fsdp=2",
)
class MilestonesAsText(fsdp2.Fsdp2Run):
    """The schedule takes a way through JSON, whose keys are text: no step is a milestone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.schedulers = (MultiStepLR(self.optimizers[0], [4, 8]),)

    def load(self, path: Path) -> None:
        super().load(path)
        (schedule,) = self.schedulers
        assert isinstance(schedule, MultiStepLR)
        schedule.milestones = {str(k): v for k, v in schedule.milestones.items()}  # type: ignore[assignment]
