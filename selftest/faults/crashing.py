"""Faults of saves that are interrupted: CRASH, plain checkpoints."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2

FULL = "a disk full from the first byte on rank 0 over a checkpoint"


class Alone(fsdp2.Fsdp2Run):
    """Base: what becomes of the write only the rank that makes it knows."""

    def save(self, path: Path) -> None:
        payload = {"model": self.export_model(), "optimizers": self.export_optimizers()}
        schedulers = [scheduler.state_dict() for scheduler in self.schedulers]
        if self.ctx.rank == 0:
            self.write({**payload, "schedulers": schedulers, **self.counters()}, path)
        self.wait()

    def wait(self) -> None:
        self.barrier()


@plant(fsdp2.Adapter, rule="CRASH-01", subject=FULL, mesh="fsdp=2", likely="before anybody raises")
class TellsNobody(Alone):
    """The rank that writes raises, and the others wait for it in a barrier."""


@plant(fsdp2.Adapter, rule="CRASH-01", subject=FULL, mesh="fsdp=2", likely="without asking")
class WaitsForNobody(Alone):
    """The ranks that do not write go on after a while, whatever has become of the file."""

    def wait(self) -> None:
        time.sleep(0.2)


@plant(fsdp2.Adapter, rule="CRASH-02", subject=FULL, mesh="fsdp=2")
class LogsTheError(fsdp2.Fsdp2Run):
    """The error goes to a log, and the save returns."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        try:
            super().write(payload, path)
        except (OSError, RuntimeError) as error:
            self._log = str(error)


class InPlace(fsdp2.Fsdp2Run):
    """The file is written over the older one."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        torch.save(payload, path)


class RemovesFirst(fsdp2.Fsdp2Run):
    """The older checkpoint is removed to make room for the newer."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        path.unlink(missing_ok=True)
        super().write(payload, path)


@plant(fsdp2.Adapter, rule="CRASH-03", subject=FULL, mesh="fsdp=2", likely="written in place")
class WritesInPlace(InPlace):
    __doc__ = InPlace.__doc__


@plant(
    fsdp2.Adapter,
    rule="CRASH-03",
    subject=FULL,
    mesh="fsdp=2",
    public=("B133",),
    likely="before the newer has its name",
)
class MakesRoom(RemovesFirst):
    __doc__ = RemovesFirst.__doc__


class Parts(fsdp2.Fsdp2Run):
    """Base: a folder with a file for the weights and one for the rest, which may be missing."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        path.mkdir(exist_ok=True)
        model = {"model": payload["model"], **self.counters()}
        rest = {name: value for name, value in payload.items() if name not in model}
        for name, part in (("model", model), ("rest", rest)):
            with (path / f"{name}.pt").open("wb") as file:
                torch.save(part, file)

    def check_agreement(self, path: Path) -> None:
        pass

    def read_file(self, path: Path) -> Any:
        payload = torch.load(path / "model.pt", weights_only=True)
        # As at the beginning of a run.
        payload["optimizers"] = self.export_optimizers()
        payload["schedulers"] = [scheduler.state_dict() for scheduler in self.schedulers]
        with contextlib.suppress(OSError, EOFError, RuntimeError):
            payload.update(torch.load(path / "rest.pt", weights_only=True))
        return payload


@plant(
    fsdp2.Adapter,
    rule="CRASH-04",
    subject="a disk full at the last byte on rank 0 at a new path",
    mesh="fsdp=2",
    public=("B135",),
)
class HalfIsEnough(Parts):
    """What of a checkpoint cannot be read is taken as not saved, and starts anew."""


@plant(
    fsdp2.Adapter,
    rule="CRASH-09",
    subject="generation 2, rank 0 before opening rest.pt",
    mesh="fsdp=2",
    likely="one after the other",
)
class PartByPart(Parts):
    """One file after the other is replaced: weights of one step, and moments of another."""


@plant(
    fsdp2.Adapter,
    rule="CRASH-10",
    subject="generation 1, rank 0 before opening rest.pt",
    mesh="fsdp=2",
    public=("B135",),
)
class NoMark(Parts):
    """Nothing marks a folder as finished."""


class Offloads(fsdp2.Fsdp2Run):
    """Base: the optimizer's state makes room during the save, and comes back where it succeeds."""

    def make_room(self) -> None:
        (optimizer,) = self.optimizers
        self._kept = dict(optimizer.state)
        optimizer.state.clear()

    def bring_back(self) -> None:
        self.optimizers[0].state.update(self._kept)


@plant(fsdp2.Adapter, rule="CRASH-05", subject="embed.weight[exp_avg]", mesh="fsdp=2")
class RoomForTheWrite(Offloads):
    __doc__ = Offloads.__doc__

    def export_extra(self) -> dict[str, Any]:
        self.make_room()
        return super().export_extra()

    def save(self, path: Path) -> None:
        super().save(path)
        self.bring_back()


@contextlib.contextmanager
def locked(path: Path, always: bool) -> Iterator[None]:
    """Hold a lock file; with `always` it is removed after an error as well."""
    lock = path.with_name(f"{path.name}.lock")
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    try:
        yield
    except BaseException:
        if always:
            lock.unlink()
        raise
    lock.unlink()


@plant(fsdp2.Adapter, rule="CRASH-06", subject="save again (failing)", mesh="fsdp=2")
class LockStays(fsdp2.Fsdp2Run):
    """A lock file is removed after a save that succeeds."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        with locked(path, always=False):
            super().write(payload, path)


@plant(fsdp2.Adapter, rule="CRASH-12", subject="save again (restarted)", mesh="fsdp=2")
class LockOfTheDead(fsdp2.Fsdp2Run):
    """A lock file is removed after every save, but nobody asks whether its owner is alive."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        with locked(path, always=True):
            super().write(payload, path)


class NewNames(fsdp2.Fsdp2Run):
    """Every save writes under a new name beside the path."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        self.write_beside(payload, path, path.with_name(f"{path.name}.{uuid.uuid4().hex}"))

    def write_beside(self, payload: Mapping[str, Any], path: Path, unfinished: Path) -> None:
        torch.save(payload, unfinished)
        unfinished.replace(path)


@plant(fsdp2.Adapter, rule="CRASH-07", subject="checkpoint.#", mesh="fsdp=2")
class NobodyCleans(NewNames):
    """Files of saves that failed are never removed."""


@plant(fsdp2.Adapter, rule="CRASH-07", subject="checkpoint.#", mesh="fsdp=2")
class CleansItsOwn(NewNames):
    """A save that fails removes its file; a rank that is killed removes nothing."""

    def write_beside(self, payload: Mapping[str, Any], path: Path, unfinished: Path) -> None:
        try:
            super().write_beside(payload, path, unfinished)
        finally:
            unfinished.unlink(missing_ok=True)


@plant(fsdp2.Adapter, rule="CRASH-08", subject="embed.weight", mesh="fsdp=2")
class IsThereAlready(fsdp2.Fsdp2Run):
    """A path that exists is taken as saved."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        if not path.exists():
            super().write(payload, path)


@plant(
    fsdp2.Adapter,
    rule="CRASH-09",
    subject="generation 2, rank 0 before renaming checkpoint.unfinished",
    mesh="fsdp=2",
    public=("B133",),
)
class RemovesTooEarly(RemovesFirst):
    __doc__ = RemovesFirst.__doc__


@plant(fsdp2.Adapter, rule="CRASH-11", subject="checkpoint", mesh="fsdp=2")
class HalfWritten(InPlace):
    __doc__ = InPlace.__doc__


@plant(fsdp2.Adapter, rule="CRASH-11", subject="checkpoint", mesh="fsdp=2")
class SurvivorFinishes(fsdp2.Fsdp2Run):
    """The last rank gives the file its name, also where the one that writes it has died."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        torch.save(payload, path.with_name("checkpoint.unfinished"))

    def save(self, path: Path) -> None:
        try:
            super().save(path)
        finally:
            if self.ctx.rank == self.ctx.world_size - 1:
                path.with_name("checkpoint.unfinished").replace(path)
