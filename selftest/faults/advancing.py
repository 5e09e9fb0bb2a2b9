"""Faults of folders of checkpoints: CRASH, the newest of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import keeping


@plant(keeping.Adapter, rule="CRASH-29", subject="global_step", mesh="fsdp=2")
class PointerStays(keeping.Keeping):
    """A pointer that is there already is left alone."""

    keep = 9

    def point_to(self, folder: Path, path: Path) -> None:
        if not (folder / keeping.POINTER).exists():
            super().point_to(folder, path)


@plant(
    keeping.Adapter,
    rule="CRASH-30",
    subject="generation 2, rank 0 before renaming step-#.pt.unfinished",
    mesh="fsdp=2",
    public=("B133",),
)
class PointerFirst(keeping.Keeping):
    """The pointer moves when the save begins."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        if path.parent.name != "saved":
            self.point_to(path.parent, path)
        super().write(payload, path)


@plant(
    keeping.Adapter,
    rule="CRASH-30",
    subject="generation 2, rank 0 before opening b.pt",
    mesh="fsdp=2",
    public=("B135", "B142"),
)
class NewestByName(keeping.Keeping):
    """The folder with the highest step is taken, whatever is in it."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        path.mkdir(exist_ok=True)
        for name in ("a.pt", "b.pt"):
            with (path / name).open("wb") as file:
                torch.save(payload, file)

    def check_agreement(self, path: Path) -> None:
        pass

    def read_file(self, path: Path) -> Any:
        return super().read_file(path / "a.pt") and super().read_file(path / "b.pt")

    def remove(self, path: Path) -> None:
        pass

    def load_newest(self, folder: Path) -> bool:
        *_, newest = self.kept(folder)
        self.load(newest)
        return True


@plant(
    keeping.Adapter,
    rule="CRASH-30",
    subject="generation 2, rank 0 before renaming step-#.pt.unfinished",
    mesh="fsdp=2",
    public=("B133",),
)
class RemovesTooEarly(keeping.Keeping):
    """One checkpoint is kept, and it makes room before the next is written."""

    def save_into(self, folder: Path) -> None:
        if self.ctx.rank == 0:
            for old in self.kept(folder):
                self.remove(old)
        super().save_into(folder)


@plant(keeping.Adapter, rule="CRASH-39", subject="step-4.pt", mesh="fsdp=2")
class BeginsAnewBesideAnOlder(keeping.Keeping):
    """A pointer to a checkpoint that is gone is taken for none, as before the first save."""

    def load_newest(self, folder: Path) -> bool:
        pointer = folder / keeping.POINTER
        if not pointer.exists() or not (folder / pointer.read_text()).exists():
            return False
        return super().load_newest(folder)


@plant(keeping.Adapter, rule="CRASH-31", subject="step-1.pt", mesh="fsdp=2")
class KeepsTheFirst(keeping.Keeping):
    """The first checkpoint counts among those that are kept."""

    def kept(self, folder: Path) -> list[Path]:
        first, *others = super().kept(folder)
        return [*others[:-1], first, *others[-1:]]


@plant(keeping.Adapter, rule="CRASH-31", subject="a removal that fails", mesh="fsdp=2")
class HasToRemove(keeping.Keeping):
    """A checkpoint that cannot be removed ends the save, and with it the job."""

    def remove(self, path: Path) -> None:
        path.unlink()
