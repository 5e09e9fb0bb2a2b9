"""Faults of folders of checkpoints that other worlds use, and of the first save into one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import keeping

REST = ("optimizers", "schedulers")


@plant(
    keeping.Adapter,
    rule="CRASH-32",
    subject="generation 2, rank 0 before renaming part-#.pt.unfinished",
    mesh="fsdp=1",
)
class PartsOfToday(keeping.Keeping):
    """A checkpoint counts as whole when it has a part for each rank that looks."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        if not path.name.startswith("step-"):
            return super().write(payload, path)
        path.mkdir()
        alone = self.ctx.world_size == 1
        rest = {key: payload[key] for key in REST}
        most = {key: value for key, value in payload.items() if alone or key not in REST}
        # What comes last makes it whole: here the part of the last rank.
        torch.save({} if alone else most, path / ("part-1.pt" if alone else "part-0.pt"))
        super().write(most if alone else rest, path / ("part-0.pt" if alone else "part-1.pt"))

    def check_agreement(self, path: Path) -> None:
        if path.is_file():
            super().check_agreement(path)

    def read_file(self, path: Path) -> Any:
        if path.is_file():
            return super().read_file(path)
        parts = [keeping.Keeping.read_file(self, part) for part in path.glob("part-*.pt")]
        return {key: value for part in parts for key, value in part.items()}

    def remove(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def load_newest(self, folder: Path) -> bool:
        wanted = [f"part-{number}.pt" for number in range(min(self.ctx.world_size, 2))]
        *_, newest = (
            path for path in self.kept(folder) if all((path / name).exists() for name in wanted)
        )
        self.load(newest)
        return True


@plant(keeping.Adapter, rule="CRASH-33", subject="global_step", mesh="fsdp=2", public=("B38",))
class PointerOfEachRank(keeping.Keeping):
    """Each rank keeps a pointer of its own, and a smaller world renews fewer of them."""

    keep = 9

    def save_into(self, folder: Path) -> None:
        super().save_into(folder)
        own = self.pointer(folder, self.ctx.rank)
        unfinished = own.with_name(f"{own.name}.unfinished")
        unfinished.write_text((folder / keeping.POINTER).read_text())
        unfinished.replace(own)

    def load_newest(self, folder: Path) -> bool:
        names = [self.pointer(folder, rank) for rank in range(self.ctx.world_size)]
        told = [folder / name.read_text() for name in names if name.exists()]
        if not told:
            return False
        # Not all may have come to move theirs.
        self.load(min(told, key=self.kept(folder).index))
        return True

    def pointer(self, folder: Path, rank: int) -> Path:
        return folder / f"{keeping.POINTER}-{rank}"


@plant(
    keeping.Adapter,
    rule="CRASH-34",
    subject="first save into (advancing)",
    mesh="fsdp=2",
    public=("B137",),
)
class ListsBeforeThereIsAFolder(keeping.Keeping):
    """All ranks list what is to be removed, which the first one has not made yet."""

    def save_into(self, folder: Path) -> None:
        self.barrier()
        if self.ctx.rank == 0:
            folder.mkdir(exist_ok=True)
        assert len(list(folder.iterdir())) < 99
        super().save_into(folder)
