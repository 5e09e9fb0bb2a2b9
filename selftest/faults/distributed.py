"""Faults of distributed checkpoints: DCP, on the FSDP2 trainer that has them."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import sharded


@plant(sharded.Adapter, rule="DCP-01", subject="load sharded (unsharding)", mesh="fsdp=2")
class TemplateOfOtherNames(sharded.Sharded):
    """The template of the load has a wrapper's prefix that the save did not have."""

    def template(self, layout: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
        tensors = super().template(layout)
        tensors["model"] = {f"module.{name}": v for name, v in tensors["model"].items()}
        return tensors


@plant(sharded.Adapter, rule="DCP-02", subject="backup.distcp", mesh="fsdp=2", public=("B135",))
class LeavesAnotherFile(sharded.Sharded):
    """A file of an earlier save is left in the directory under a name of its own."""

    def save_sharded(self, path: Path) -> None:
        super().save_sharded(path)
        if self.ctx.rank == 0:
            shutil.copy(path / "__0_0.distcp", path / "backup.distcp")
        self.barrier()


@plant(sharded.Adapter, rule="DCP-02", subject="__0_1.distcp", mesh="fsdp=2")
class LeavesAFirstAttempt(sharded.Sharded):
    """A save is tried with two writers and then with one; files of the first attempt stay."""

    def write_tensors(self, folder: Path) -> None:
        two = dcp.FileSystemWriter(folder, thread_count=2)
        dcp.save({"model": self.model.state_dict()}, storage_writer=two)
        super().write_tensors(folder)


@plant(sharded.Adapter, rule="DCP-02", subject=".metadata.tmp", mesh="fsdp=2")
class KeepsADraft(sharded.Sharded):
    """What is renamed once it is whole was written once more, and that is never renamed."""

    def publish(self, unfinished: Path, path: Path, rest: Mapping[str, Any]) -> None:
        shutil.copy(unfinished / ".metadata", unfinished / ".metadata.tmp")
        super().publish(unfinished, path, rest)


@plant(
    sharded.Adapter,
    rule="DCP-03",
    subject="model.embed.weight",
    mesh="fsdp=2",
    public=("B28", "B30"),
)
class DropsAChunk(sharded.Sharded):
    """A shard is taken for a copy of another one, and the metadata does not list it."""

    def save_sharded(self, path: Path) -> None:
        super().save_sharded(path)
        if self.ctx.rank == 0:
            metadata = pickle.loads((path / ".metadata").read_bytes())
            metadata.state_dict_metadata["model.embed.weight"].chunks.pop()
            (path / ".metadata").write_bytes(pickle.dumps(metadata))
        self.barrier()


@plant(
    sharded.Adapter,
    rule="DCP-04",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B12",),
    likely="no optimizer state came back",
)
class TemplateWithoutMoments(sharded.Sharded):
    """A new optimizer's state is the template, and has no slot for the saved moments."""

    def template(self, layout: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
        return super().template({})


@plant(
    sharded.Adapter,
    rule="DCP-04",
    subject="optimizer 0 group 0: lr",
    mesh="fsdp=2",
    public=("B07", "B64"),
)
class GroupsLeftOut(sharded.Sharded):
    """Hyperparameters are no part of the sharded checkpoint."""

    def put(self, tensors: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        super().put(tensors, {**rest, "groups": [{}]})


@plant(
    sharded.Adapter,
    rule="DCP-05",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B37",),
)
class NoMomentsOnOtherRanks(sharded.Sharded):
    """Moments are only taken over where the number of ranks is that of the save."""

    def sharded_rest(self) -> dict[str, Any]:
        return super().sharded_rest() | {"world": self.ctx.world_size}

    def put(self, tensors: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        if rest["world"] != self.ctx.world_size:
            tensors = {**tensors, "optimizer": {}}
        super().put(tensors, rest)


@plant(sharded.Adapter, rule="DCP-06", subject="torch random stream", mesh="fsdp=2")
class DrawsAnId(sharded.Sharded):
    """The id of the checkpoint is drawn from the stream that dropout draws from."""

    def save_sharded(self, path: Path) -> None:
        torch.randint(1000, ())
        super().save_sharded(path)


@plant(
    sharded.Adapter,
    rule="DCP-07",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B92", "B85"),
)
class LoaderLeftOut(sharded.Sharded):
    """The loader's position is not in the sharded checkpoint: data start again."""

    _position = -1

    def data_step(self) -> int:
        self._position += 1
        return self._position


@plant(sharded.Adapter, rule="DCP-08", subject="data files", mesh="fsdp=2")
class EveryRankWritesAll(sharded.Sharded):
    """Plain tensors are saved by every rank under names of their own."""

    def sharded_tensors(self) -> dict[str, Any]:
        cache = torch.zeros(400_000)
        return super().sharded_tensors() | {f"rank {self.ctx.rank}": {"cache": cache}}


@plant(sharded.Adapter, rule="DCP-09", subject="__1_0.distcp", mesh="fsdp=2", public=("B48",))
class KeepsItToItself(sharded.Sharded):
    """The error is caught, put down in a log, and the run goes on with what it had."""

    def load_sharded(self, path: Path) -> None:
        try:
            super().load_sharded(path)
        except Exception as error:
            self._log = str(error)


@plant(sharded.Adapter, rule="DCP-26", subject="__1_0.distcp", mesh="fsdp=2")
class SaysNoMore(sharded.Sharded):
    """Whatever a load has run into, its error says that the checkpoint is broken."""

    def load_sharded(self, path: Path) -> None:
        try:
            super().load_sharded(path)
        except Exception:
            raise RuntimeError("the checkpoint is broken") from None


@plant(sharded.Adapter, rule="DCP-26", subject="__1_0.distcp", mesh="fsdp=2")
class SaysThatOneIsWrong(sharded.Sharded):
    """A file that is missing is named; of a file that was cut it is said that there is one."""

    def verify(self, path: Path, rest: Mapping[str, Any]) -> None:
        found = sharded.checksums(path)
        missing = sorted(rest["checksums"].keys() - found.keys())
        if missing:
            raise ValueError(f"missing files: {missing}")
        if found != rest["checksums"]:
            raise ValueError("a checksum is wrong")


@plant(sharded.Adapter, rule="DCP-10", subject="__1_0.distcp", mesh="fsdp=2")
class NoChecksums(sharded.Sharded):
    """Files are read as they are found, as torch does it."""

    def verify(self, path: Path, rest: Mapping[str, Any]) -> None:
        pass


@plant(sharded.Adapter, rule="DCP-11", subject="embed.weight", mesh="fsdp=2")
class ReadsIntoLiveTensors(sharded.Sharded):
    """Files are read into the live tensors, and checked afterwards."""

    def load_sharded(self, path: Path) -> None:
        rest = torch.load(path / sharded.REST, weights_only=True)
        tensors = self.template(rest["layout"]) | {"model": self.model.state_dict()}
        self.read(tensors, path)
        self.verify(path, rest)
        self.put(tensors, rest)
