"""Trainers of which one whole part does not work, so that most rules cannot be answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun

from pytest_cplife import RankContext, TrainingRun


class NoStart(fsdp2.Adapter):
    """Starts nowhere but serially."""

    def start(self, ctx: RankContext) -> TrainingRun:
        if not ctx.serial:
            raise RuntimeError("this mesh is not known")
        return super().start(ctx)


class _NoSave(fsdp2.Fsdp2Run):
    def save(self, path: Path) -> None:
        raise OSError("no space left")


class NoSave(fsdp2.Adapter):
    """Cannot save."""

    run_class = _NoSave


class _SavesElsewhere(fsdp2.Fsdp2Run):
    def save(self, path: Path) -> None:
        super().save(path.with_suffix(".elsewhere"))


class SavesElsewhere(fsdp2.Adapter):
    """Saves, but not where it was told."""

    run_class = _SavesElsewhere


class _NoLoad(fsdp2.Fsdp2Run):
    def load(self, path: Path) -> None:
        raise OSError("stale file handle")


class NoLoad(fsdp2.Adapter):
    """Cannot load."""

    run_class = _NoLoad


class _NoOptimizer(LoopRun):
    def export_optimizers(self) -> list[Any]:
        return []

    def check_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """There are none."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """The optimizer starts afresh."""


class _SavesNoOptimizer(_NoOptimizer, fsdp2.Fsdp2Run):
    pass


class SavesNoOptimizer(fsdp2.Adapter):
    """Saves weights, schedules and counters, and nothing of the optimizer, serially as well."""

    run_class = _SavesNoOptimizer
    serial_run = _NoOptimizer


class _Refuses(fsdp2.Fsdp2Run):
    def save(self, path: Path) -> None:
        there = path.exists()
        if dist.get_world_size() > 1:
            dist.barrier()  # Everybody has looked before anybody writes.
        if there:
            raise FileExistsError("a checkpoint is there already")
        super().save(path)


class Refuses(fsdp2.Adapter):
    """Sound: never saves over a checkpoint, and says so on every rank."""

    run_class = _Refuses


class _RefusesAlone(fsdp2.Fsdp2Run):
    def save(self, path: Path) -> None:
        if self.ctx.rank == 0 and path.exists():
            raise FileExistsError("a checkpoint is there already")
        super().save(path)


class RefusesAlone(fsdp2.Adapter):
    """Says so on one rank, for which the others wait."""

    run_class = _RefusesAlone
