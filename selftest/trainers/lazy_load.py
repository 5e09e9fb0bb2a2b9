"""Keeps the file that it was given until `ready`, and can load before the first step only."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun


class Lazy(LoopRun):
    _waiting: Path | None = None

    def load(self, path: Path) -> None:
        if self.global_step:
            raise RuntimeError("a checkpoint is loaded before the first step only")
        self._waiting = path

    def ready(self) -> None:
        if self._waiting is not None:
            super().load(self._waiting)
            self._waiting = None


class Fsdp2Run(Lazy, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    live_load = False
    run_class = Fsdp2Run
    serial_run = Lazy
