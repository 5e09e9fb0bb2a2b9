"""Faults that only a file of yesterday shows: today's code is right about today's own files.

Each is given a golden archive of its healthy base, as if an earlier version had recorded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.data import Batch
from torch import Tensor


@plant(fsdp2.Adapter, rule="COMPAT-07", subject="global_step", mesh="fsdp=2", earlier=True)
class RenamedOnBothSides(fsdp2.Fsdp2Run):
    """The counters moved to an entry of their own; in a file without it, they start anew."""

    def counters(self) -> dict[str, Any]:
        return {"progress": super().counters()}

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(payload.get("progress", {"global_step": 0, "epoch": 0}))


@plant(fsdp2.Adapter, rule="COMPAT-07", subject="checkpoint", mesh="fsdp=2", earlier=True)
class NewEntryRequired(fsdp2.Fsdp2Run):
    """An entry that files have since today is asked for in every file."""

    def export_extra(self) -> dict[str, Any]:
        return {"precision": "float32"}

    def check_file(self, payload: Mapping[str, Any]) -> None:
        super().check_file(payload)
        if payload["precision"] != "float32":
            raise ValueError("the file is of another precision")


@plant(fsdp2.Adapter, rule="COMPAT-07", subject="frequency", mesh="fsdp=2", earlier=True)
class TableOfItsOwn(fsdp2.Fsdp2Run):
    """A table is read from an entry that files have since today; without it, it stays empty."""

    def export_extra(self) -> dict[str, Any]:
        return {"tables": {"frequency": self.model.frequency.clone()}}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        empty = torch.zeros_like(self.model.frequency)
        self.model.frequency.copy_(payload.get("tables", {}).get("frequency", empty))


@plant(fsdp2.Adapter, rule="COMPAT-08", subject="entry saved_by", mesh="fsdp=2", earlier=True)
class NewEntry(fsdp2.Fsdp2Run):
    """Files have an entry more, and no archive of such a file was recorded."""

    def export_extra(self) -> dict[str, Any]:
        return {"saved_by": "version 2"}


@plant(
    fsdp2.Adapter,
    rule="COMPAT-14",
    subject="loss 1 after the load",
    mesh="fsdp=1",
    earlier=True,
)
class AnotherLoss(fsdp2.Fsdp2Run):
    """All state loads as ever, and a default of the loss was changed."""

    def loss(self, batch: Batch) -> Tensor:
        return 0.9 * super().loss(batch)
