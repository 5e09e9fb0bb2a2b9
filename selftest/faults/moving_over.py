"""Faults of one path to which worlds of different sizes save, one after the other: CRASH."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2, sharded
from pytest_cplife.selftest.trainers.agreement import in_turn, on_rank_zero
from pytest_cplife.selftest.trainers.loop import check_records
from pytest_cplife.selftest.trainers.named_state import export_optimizer, place_like

from pytest_cplife import RankContext, TrainingRun


class TwoSizes(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")


class ShardedTwoSizes(sharded.Adapter):
    meshes = ("fsdp=1", "fsdp=2")


def beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}")


def replace_by(path: Path, value: Any) -> None:
    unfinished = beside(path, "unfinished")
    torch.save(value, unfinished)
    unfinished.replace(path)


def share(state: Mapping[str, Any], ctx: RankContext) -> dict[str, Any]:
    """What of all parameters' moments a rank writes."""
    return {name: state[name] for name in sorted(state)[ctx.rank :: ctx.world_size]}


@plant(
    TwoSizes,
    rule="CRASH-35",
    subject="generation 2, rank 1 before renaming checkpoint.part-#.unfinished",
    mesh="fsdp=1",
)
class JoinsThePartsOfToday(fsdp2.Fsdp2Run):
    """Each rank's part of a save is joined with the others' by a restart as well, where that finds
    as many parts as it has ranks."""

    def save(self, path: Path) -> None:
        (optimizer,) = self.optimizers
        moments = export_optimizer(self.model, optimizer)
        part = {
            "model": self.export_model(),
            "optimizers": [{**moments, "state": share(moments["state"], self.ctx)}],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            **self.counters(),
        }
        in_turn(self.ctx, lambda: replace_by(self.parts(path)[self.ctx.rank], part))
        on_rank_zero(self.ctx, lambda: self.join(path))

    def parts(self, path: Path) -> list[Path]:
        return [beside(path, f"part-{rank}") for rank in range(self.ctx.world_size)]

    def join(self, path: Path) -> None:
        self.write(self.read_file(path), path)
        for part in self.parts(path):
            part.unlink()

    def read_file(self, path: Path) -> Any:
        if not all(part.exists() for part in self.parts(path)):
            return super().read_file(path)
        whole, *others = [fsdp2.Fsdp2Run.read_file(self, part) for part in self.parts(path)]
        for other in others:
            whole["optimizers"][0]["state"].update(other["optimizers"][0]["state"])
        return whole


@plant(TwoSizes, rule="CRASH-36", subject="global_step", mesh="fsdp=2", public=("B38",))
class NoteOfEachRank(fsdp2.Fsdp2Run):
    """Each rank notes which copy it has seen finished, and the oldest that is noted is taken; a
    smaller world renews fewer notes."""

    def save(self, path: Path) -> None:
        copy = beside(path, f"{self.global_step}")
        super().save(copy)
        super().save(path)
        in_turn(self.ctx, lambda: replace_by(self.notes(path)[self.ctx.rank], copy.name))
        on_rank_zero(self.ctx, lambda: self.remove_older(path))

    def notes(self, path: Path) -> list[Path]:
        return [beside(path, f"of-rank-{rank}") for rank in range(self.ctx.world_size)]

    def remove_older(self, path: Path) -> None:
        copies = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdigit()]
        for copy in sorted(copies, key=step)[:-2]:
            copy.unlink()

    def load(self, path: Path) -> None:
        # A save may have been stopped when some ranks had theirs.
        told = [path.with_name(torch.load(note)) for note in self.notes(path) if note.exists()]
        super().load(min(told, key=step, default=path))


def step(copy: Path) -> int:
    return int(copy.suffix[1:])


class Moments(sharded.Sharded):
    """Base: each rank writes its share of the moments into a file beside torch's."""

    save_sharded_async = TrainingRun.save_sharded_async

    def write_tensors(self, folder: Path) -> None:
        super().write_tensors(folder)
        rest = {**self.sharded_rest(), "checksums": sharded.checksums(folder)}
        on_rank_zero(self.ctx, lambda: torch.save(rest, folder / sharded.REST))
        (optimizer,) = self.optimizers
        own = share(export_optimizer(self.model, optimizer)["state"], self.ctx)
        in_turn(self.ctx, lambda: replace_by(self.files(folder)[self.ctx.rank], own))

    def files(self, folder: Path) -> list[Path]:
        return [folder / f"moments-{rank}.pt" for rank in range(self.ctx.world_size)]

    def sharded_tensors(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def verify(self, path: Path, rest: Mapping[str, Any]) -> None:
        found = sharded.checksums(path)
        super().verify(path, {"checksums": {**found, **rest["checksums"]}})

    def read(self, tensors: dict[str, Any], path: Path) -> None:
        del tensors["optimizer"]
        super().read(tensors, path)
        tensors["optimizer"] = {}
        parameters = dict(self.model.named_parameters())
        for file in sorted(path.glob("moments-*.pt")):
            check_records(file)
            for name, entries in torch.load(file).items():
                moments = {key: place_like(each, parameters[name]) for key, each in entries.items()}
                tensors["optimizer"][name] = moments


@plant(
    ShardedTwoSizes,
    rule="CRASH-37",
    subject="generation 2, rank 1 before renaming moments-#.pt.unfinished",
    mesh="fsdp=1",
)
class TakesUpWhatIsUnfinished(Moments):
    """What was written and not yet published counts as whole, where a restart finds in it a file
    for each of its own ranks."""

    def load_sharded(self, path: Path) -> None:
        unfinished = beside(path, "unfinished")
        whole = all(file.exists() for file in self.files(unfinished))
        super().load_sharded(unfinished if whole else path)


@plant(ShardedTwoSizes, rule="CRASH-38", subject="blocks.0.up.weight[exp_avg]", mesh="fsdp=2")
class CarriesOver(Moments):
    """What somebody has put beside torch's files, such as a tokenizer, is carried over; and so are
    files of ranks that are gone."""

    def publish(self, unfinished: Path, path: Path, rest: Mapping[str, Any]) -> None:
        for file in path.glob("*.pt"):
            if not (unfinished / file.name).exists():
                shutil.copy(file, unfinished)
        super().publish(unfinished, path, rest)
