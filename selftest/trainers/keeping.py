"""FSDP2 with a folder of plain checkpoints: a pointer to the newest, of which two are kept."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.agreement import on_rank_zero

POINTER = "latest"


class Keeping(fsdp2.Fsdp2Run):
    """Adds `save_into` and `load_newest`."""

    keep = 2

    def save_into(self, folder: Path) -> None:
        path = folder / f"step-{self.global_step}.pt"
        on_rank_zero(self.ctx, lambda: folder.mkdir(exist_ok=True))
        self.save(path)
        on_rank_zero(self.ctx, lambda: self.advance(folder, path))

    def advance(self, folder: Path, path: Path) -> None:
        """Move the pointer, then remove what is no longer kept."""
        self.point_to(folder, path)
        for old in self.kept(folder)[: -self.keep]:
            self.remove(old)

    def point_to(self, folder: Path, path: Path) -> None:
        unfinished = folder / f"{POINTER}.unfinished"
        unfinished.write_text(path.name)
        unfinished.replace(folder / POINTER)

    def kept(self, folder: Path) -> list[Path]:
        """Checkpoints from old to new."""
        return sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))

    def remove(self, path: Path) -> None:
        try:
            path.unlink()
        except OSError as error:
            print(f"{path} stays: {error}")

    def load_newest(self, folder: Path) -> bool:
        pointer = folder / POINTER
        if not pointer.exists():
            return False
        self.load(folder / pointer.read_text())
        return True


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    run_class = Keeping
