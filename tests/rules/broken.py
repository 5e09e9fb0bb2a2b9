"""Trainers of which one whole part does not work, so that most rules cannot be answered."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.selftest.trainers import fsdp2

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
