"""Faults of how a sharded checkpoint lies on the disk."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import sharded
from pytest_cplife.selftest.trainers.named_state import plain
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.tensor import DTensor


def local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


@plant(
    sharded.Adapter,
    rule="DCP-01",
    subject="save sharded (sharding)",
    mesh="fsdp=2",
    public=("B33",),
)
class RemadeFromLocal(sharded.Sharded):
    """DTensors are made anew from their local parts, which have forgotten the uneven whole."""

    def sharded_tensors(self) -> dict[str, Any]:
        tensors = super().sharded_tensors()
        model = {
            name: DTensor.from_local(value.to_local(), value.device_mesh, value.placements)
            if isinstance(value, DTensor)
            else value
            for name, value in tensors["model"].items()
        }
        return tensors | {"model": model}


@plant(sharded.Adapter, rule="DCP-12", subject="rank 1.embed.weight", mesh="fsdp=2")
class ShardsAsTensors(sharded.Sharded):
    """Each rank saves its shards as tensors of their own, under names that have its number."""

    def sharded_tensors(self) -> dict[str, Any]:
        tensors = super().sharded_tensors()
        model = {name: local(value) for name, value in tensors.pop("model").items()}
        return tensors | {f"rank {self.ctx.rank}": model}

    def template(self, layout: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
        tensors = super().template(layout)
        model = {name: local(value) for name, value in tensors["model"].items()}
        return tensors | {f"rank {self.ctx.rank}": model}

    def read(self, tensors: dict[str, Any], path: Path) -> None:
        # Of the model's own tensors, which share memory with these, the directory knows nothing.
        super().read({key: value for key, value in tensors.items() if key != "model"}, path)


@plant(
    sharded.Adapter,
    rule="DCP-18",
    subject="read the model's part (sharded files)",
    mesh="fsdp=2",
)
class PacksIntoAnObject(sharded.Sharded):
    """The model is gathered and packed into one object, and is read whole or not at all."""

    def sharded_tensors(self) -> dict[str, Any]:
        tensors = super().sharded_tensors()
        packed = io.BytesIO()
        torch.save({name: plain(value) for name, value in tensors["model"].items()}, packed)
        return tensors | {"model": packed.getvalue()}

    def read(self, tensors: dict[str, Any], path: Path) -> None:
        packed = tensors | {"model": b""}
        super().read(packed, path)
        tensors |= packed

    def put(self, tensors: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        self.restore_model(torch.load(io.BytesIO(tensors["model"]), weights_only=True))
        super().put({**tensors, "model": self.model.state_dict()}, rest)


@plant(sharded.Adapter, rule="DCP-19", subject="files of rank 0", mesh="fsdp=2")
class LeavesItToTheFirst(sharded.Sharded):
    """Tensors are gathered before they are saved, and of equal ones the first rank's is kept."""

    def write_tensors(self, folder: Path) -> None:
        whole = {part: _gathered(values) for part, values in self.sharded_tensors().items()}
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        dcp.save(whole, checkpoint_id=folder, planner=planner)


def _gathered(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _gathered(value) for key, value in tree.items()}
    return plain(tree)
