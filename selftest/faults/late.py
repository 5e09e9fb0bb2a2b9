"""Faults that a short run is spared: counts that come too far for what they are kept in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import bf16_master, ddp, fsdp2
from torch import Tensor


@plant(
    fsdp2.Adapter,
    rule="OPT-12",
    subject="embed.weight[step]",
    mesh="fsdp=2",
    public=("B155",),
    likely="rounded to bfloat16",
)
class RoundsLateSteps(fsdp2.Fsdp2Run):
    """Step counts take a way through bfloat16, which is exact up to 256."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        for entries in self.optimizers[0].state.values():
            step: Tensor = entries["step"]
            entries["step"] = step.bfloat16().float()


@plant(ddp.Adapter, rule="OPT-12", subject="embed.weight[step]", mesh="dp=2")
class KeepsShortCounts(ddp.DdpRun):
    """Step counts are integers of 16 bits in the file, and start below zero after 32767."""

    def export_optimizers(self) -> list[Any]:
        exported = super().export_optimizers()
        return [{**each, "state": _short(each["state"])} for each in exported]

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        for entries in self.optimizers[0].state.values():
            entries["step"] = entries["step"].float()


def _short(state: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    return {
        key: {**entries, "step": entries["step"].to(torch.int16)} for key, entries in state.items()
    }


@plant(
    bf16_master.Adapter,
    rule="SAVE-06",
    subject="embed.weight[master]",
    mesh="fsdp=2",
    likely="rounded to bfloat16",
)
class RoundsMasters(bf16_master.Fsdp2Run):
    """Masters go to the file in the dtype of the parameters that they are the masters of."""

    def export_optimizers(self) -> list[Any]:
        exported = super().export_optimizers()
        for optimizer in exported:
            for entries in optimizer["state"].values():
                if "master" in entries:
                    entries["master"] = entries["master"].to(torch.bfloat16).float()
        return exported
