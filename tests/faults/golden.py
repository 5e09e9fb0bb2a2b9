"""Faults that only a file of yesterday shows: today's code is right about today's own files.

Each is given a golden archive of its healthy base, as if an earlier version had recorded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tests.faults.planting import plant
from tests.trainers import fsdp2


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
class BufferByAnotherName(fsdp2.Fsdp2Run):
    """A buffer has a new name in the file; under its old one it is not looked for."""

    def export_model(self) -> dict[str, Any]:
        model = super().export_model()
        # torch gathers on rank 0 and leaves nothing to the others.
        return model | {"frequencies": model["frequency"]} if model else model

    def check_file(self, payload: Mapping[str, Any]) -> None:
        model = {name: v for name, v in payload["model"].items() if name != "frequencies"}
        super().check_file({**payload, "model": model})

    def restore_model(self, saved: dict[str, Any]) -> None:
        live = torch.zeros_like(saved["frequency"])
        kept = {name: value for name, value in saved.items() if name != "frequencies"}
        super().restore_model(kept | {"frequency": saved.get("frequencies", live)})


@plant(fsdp2.Adapter, rule="COMPAT-08", subject="entry saved_by", mesh="fsdp=2", earlier=True)
class NewEntry(fsdp2.Fsdp2Run):
    """Files have an entry more, and no archive of such a file was recorded."""

    def export_extra(self) -> dict[str, Any]:
        return {"saved_by": "version 2"}
