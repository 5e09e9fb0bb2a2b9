"""Faults of saves that are interrupted: CRASH, sharded checkpoints."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from pytest_cplife.selftest.faults.crashing import FULL, Offloads
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import sharded
from pytest_cplife.selftest.trainers.agreement import on_rank_zero

HALF = "a disk full at half of the file on rank 0 over a checkpoint"


@plant(
    sharded.Adapter,
    rule="CRASH-13",
    subject="the last rename fails on rank 0 over a checkpoint",
    mesh="fsdp=2",
)
class PublishesAlone(sharded.Sharded):
    """torch tells all ranks of what fails in its own part; what rank 0 does afterwards it keeps."""

    def save_sharded(self, path: Path) -> None:
        unfinished = path.with_name(f"{path.name}.unfinished")
        if self.ctx.rank == 0:
            self.prepare(path, unfinished)
        self.barrier()
        self.write_tensors(unfinished)
        if self.ctx.rank == 0:
            self.publish(unfinished, path, self.sharded_rest())
        self.barrier()


@plant(sharded.Adapter, rule="CRASH-14", subject=HALF, mesh="fsdp=2")
class LogsTheError(sharded.Sharded):
    """What torch raises goes to a log, and what it has left is published."""

    def write_tensors(self, folder: Path) -> None:
        try:
            super().write_tensors(folder)
        except RuntimeError as error:
            self._log = str(error)


class InPlace(sharded.Sharded):
    """Every rank writes over its older file, as torch does it."""

    def save_sharded(self, path: Path) -> None:
        self.write_tensors(path)
        if self.ctx.rank == 0:
            rest = self.sharded_rest() | {"checksums": sharded.checksums(path)}
            torch.save(rest, path / sharded.REST)
        self.barrier()


@plant(sharded.Adapter, rule="CRASH-15", subject=FULL, mesh="fsdp=2")
class WritesInPlace(InPlace):
    __doc__ = InPlace.__doc__


@plant(sharded.Adapter, rule="CRASH-23", subject="checkpoint", mesh="fsdp=2")
class HalfWritten(InPlace):
    __doc__ = InPlace.__doc__


class Parts(sharded.Sharded):
    """Base: a folder of the weights' and one of the moments', which may be missing."""

    def save_sharded(self, path: Path) -> None:
        on_rank_zero(self.ctx, lambda: self.write_rest(path))
        for name, tensors in self.sharded_tensors().items():
            dcp.save(tensors, checkpoint_id=path / name)

    def write_rest(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        torch.save(self.sharded_rest(), path / sharded.REST)

    def load_sharded(self, path: Path) -> None:
        rest = torch.load(path / sharded.REST, weights_only=True)
        tensors = self.template(rest["layout"])
        self.read(tensors["model"], path / "model")
        try:
            self.read(tensors["optimizer"], path / "optimizer")
        except RuntimeError:
            tensors["optimizer"] = {}
        self.put(tensors, rest)


@plant(
    sharded.Adapter,
    rule="CRASH-16",
    subject="the last rename fails on rank 0 at a new path",
    mesh="fsdp=2",
    public=("B135",),
)
class HalfIsEnough(Parts):
    """What of a checkpoint is missing is taken as not saved, and starts anew."""


@plant(
    sharded.Adapter,
    rule="CRASH-21",
    subject="generation 2, rank 0 before renaming .metadata.tmp",
    mesh="fsdp=2",
)
class PartByPart(Parts):
    """One part after the other is replaced: weights of one step, and moments of another."""


@plant(
    sharded.Adapter,
    rule="CRASH-21",
    subject="generation 2, rank 0 before renaming checkpoint.unfinished",
    mesh="fsdp=2",
    likely="nothing lies at the path",
)
class NobodyLooksBetweenTheRenames(sharded.Sharded):
    """A folder takes two renames to replace, and a restart looks for the one name only."""

    def load_sharded(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        super().load_sharded(path)


@plant(
    sharded.Adapter,
    rule="CRASH-22",
    subject="generation 1, rank 0 before renaming .metadata.tmp",
    mesh="fsdp=2",
    public=("B135",),
)
class NoMark(Parts):
    """Nothing marks a folder as finished."""


@plant(sharded.Adapter, rule="CRASH-17", subject="embed.weight[exp_avg]", mesh="fsdp=2")
class RoomForTheWrite(sharded.Sharded, Offloads):
    __doc__ = Offloads.__doc__

    def sharded_tensors(self) -> dict[str, Any]:
        tensors = super().sharded_tensors()
        self._layout = super().sharded_rest()
        self.make_room()
        return tensors

    def sharded_rest(self) -> dict[str, Any]:
        return self._layout

    def save_sharded(self, path: Path) -> None:
        super().save_sharded(path)
        self.bring_back()


class Locked(sharded.Sharded):
    """Base: a lock file is there while a save is under way."""

    def prepare(self, path: Path, unfinished: Path) -> None:
        super().prepare(path, unfinished)
        path.with_name("lock").touch(exist_ok=False)

    def publish(self, unfinished: Path, path: Path, rest: Mapping[str, Any]) -> None:
        super().publish(unfinished, path, rest)
        path.with_name("lock").unlink()


@plant(sharded.Adapter, rule="CRASH-18", subject="save again (failing sharded)", mesh="fsdp=2")
class LockStays(Locked):
    """A lock file is removed after a save that succeeds."""


@plant(sharded.Adapter, rule="CRASH-24", subject="save again (restarted sharded)", mesh="fsdp=2")
class LockOfTheDead(Locked):
    """A lock file is removed after every save, but nobody asks whether its owner is alive."""

    def save_sharded(self, path: Path) -> None:
        try:
            super().save_sharded(path)
        except RuntimeError:
            if self.ctx.rank == 0:
                path.with_name("lock").unlink(missing_ok=True)
            raise


@plant(sharded.Adapter, rule="CRASH-19", subject="checkpoint.#", mesh="fsdp=2")
class NobodyCleans(sharded.Sharded):
    """Every save writes to a new folder; those of saves that failed are never removed."""

    def save_sharded(self, path: Path) -> None:
        names = [uuid.uuid4().hex]
        torch.distributed.broadcast_object_list(names, src=0)
        unfinished = path.with_name(f"{path.name}.{names[0]}")
        self.write_tensors(unfinished)
        on_rank_zero(self.ctx, lambda: self.publish(unfinished, path, self.sharded_rest()))


@plant(sharded.Adapter, rule="CRASH-20", subject="embed.weight", mesh="fsdp=2")
class IsThereAlready(sharded.Sharded):
    """A path that exists is taken as saved, and what was written beside it is removed."""

    def publish(self, unfinished: Path, path: Path, rest: Mapping[str, Any]) -> None:
        if path.exists():
            shutil.rmtree(unfinished)
        else:
            super().publish(unfinished, path, rest)
