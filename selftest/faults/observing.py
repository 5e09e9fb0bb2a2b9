"""Faults of a save that changes what it saves, or writes too much: SAVE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2


@plant(fsdp2.Adapter, rule="SAVE-07", subject="torch random stream", mesh="fsdp=2")
class RandomFileName(fsdp2.Fsdp2Run):
    """The name of the temporary file is drawn from the stream that dropout draws from."""

    def save(self, path: Path) -> None:
        torch.randint(1000, ())
        super().save(path)


@plant(fsdp2.Adapter, rule="SAVE-07", subject="norm.weight", mesh="fsdp=2", public=("B06",))
class CastsInPlace(fsdp2.Fsdp2Run):
    """What is rounded for the file is the live tensor."""

    def export_model(self) -> dict[str, Any]:
        with torch.no_grad():
            local = self.model.norm.weight.to_local()
            local.copy_(local.bfloat16())
        return super().export_model()


@plant(Reference, rule="SAVE-07", subject="embedding.weight", mesh="cp=2", public=("B06", "B104"))
class LeavesAverageIn(Trainer):
    """A save swaps the averaged weights in and not out again."""

    def save(self, path: Path) -> None:
        super().save(path)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.ema.shadow[name])


@plant(fsdp2.Adapter, rule="SAVE-08", subject="blocks.0.up.weight", mesh="fsdp=2")
class LeavesEvaluationMode(fsdp2.Fsdp2Run):
    """A save switches dropout off and does not switch it on again."""

    def save(self, path: Path) -> None:
        super().save(path)
        for block in self.model.blocks:
            block.drop.p = 0.0


@plant(
    fsdp2.Adapter,
    rule="SAVE-09",
    subject="embed.weight[step]",
    mesh="fsdp=2",
    public=("B01", "B03"),
)
class NaiveExport(fsdp2.NaiveRun):
    """Asking torch for the optimizer's state before the first step makes a hidden one."""


@plant(
    fsdp2.Adapter,
    rule="SAVE-10",
    subject="model['embed.weight']",
    mesh="fsdp=2",
    public=("B42",),
)
class ViewOfAFusedBuffer(fsdp2.Fsdp2Run):
    """A tensor of the file is a view into a buffer that was fused of many."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        if saved:
            weight = saved["embed.weight"]
            saved["embed.weight"] = torch.cat([weight] * 20)[: weight.shape[0]]
        return saved
