"""Saves at epoch ends only, and keeps nothing but the epoch to find its place in the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun

STEPS = 2


class EpochEnds(LoopRun):
    steps_per_epoch = STEPS

    def save(self, path: Path) -> None:
        if self.global_step % self.steps_per_epoch:
            raise RuntimeError(f"step {self.global_step} is not the end of an epoch")
        super().save(path)

    def counters(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        self.epoch = payload["epoch"]
        self.global_step = self.epoch * self.steps_per_epoch


class Fsdp2Run(EpochEnds, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    save_points = "epoch_end"
    steps_per_epoch = STEPS
    run_class = Fsdp2Run
    serial_run = EpochEnds
