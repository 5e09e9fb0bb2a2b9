"""A distributed checkpoint, written: planned together, sealed by each rank, published by rank 0.

``torch.distributed.checkpoint.save`` does the first half of this with two round trips between the
ranks, one to plan and one to finish; what it writes is neither whole nor checked before it shows.
Here its planner and its writer do the same, and our checks, checksums and agreements travel on
those two round trips: integrity costs no message of its own.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from . import atomic, dcp_metadata
from .agreement import global_rank, led
from .shard_files import COMMON, rank_file
from .skeleton import split

Records = dict[str, atomic.FileRecord]


def write_shards(
    export: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]],
    path: Path,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Write what `export` gives to `path`. Collective.

    Args:
        export: gives the tree that the ranks have together, and this rank's own values. Called
            here, where a rank on which it raises does not leave the others waiting.

    Raises:
        CheckpointError: on every rank; `path` is what it was before.
    """
    doing, save = f"cannot save {path}", _Save(export, path)
    try:
        task = led(doing, save.plan, save.assign, group)
        led(doing, lambda: save.write(task), save.publish, group)
    except BaseException:  # also of the exchange itself, as where another rank has died
        if save.begun is not None:
            shutil.rmtree(save.begun, ignore_errors=True)
        raise


@dataclass(frozen=True)
class _Task:
    """What rank 0 tells a rank to write, and where."""

    folder: Path
    plan: SavePlan


@dataclass(frozen=True)
class _Written:
    """What a rank tells rank 0 that it has written."""

    results: list[WriteResult]
    records: Records
    objects: bool
    """Whether a file of its holds objects."""


class _Planner(DefaultSavePlanner):
    """torch's planner, with tensors whose bytes in memory are their elements in order.

    `DirectReader` takes them as that. ``torch.save`` keeps strides, and writes a conjugate or a
    negative view as the bytes of its original and a flag.
    """

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        assert isinstance(object, Tensor)  # `split` gives tensors only
        return object.detach().resolve_conj().resolve_neg().contiguous()


class _Save:
    """One rank's part in a save."""

    def __init__(
        self, export: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]], path: Path
    ) -> None:
        self._export = export
        self._path = path
        self._rank = global_rank()
        self._planner = _Planner()
        self._skeleton: Any = None
        self._own: Mapping[str, Any] = {}
        self._names: Collection[str] = ()
        self._metadata: Metadata | None = None
        self.begun: Path | None = None
        """The folder that rank 0 has made."""

    def plan(self) -> SavePlan:
        """This rank's wishes: what it holds of every tensor."""
        tree, self._own = self._export()
        found, self._skeleton = split(tree)
        self._names = found.keys()
        for key, tensor in found.items():
            _refuse_unreadable(key, tensor)
        self._planner.set_up_planner(dict(found), is_coordinator=self._rank == 0)
        return self._planner.create_local_plan()

    def assign(self, wishes: Sequence[SavePlan]) -> list[_Task]:
        """On rank 0: who writes what, each chunk once."""
        _refuse_differences(wishes, self._names)
        folder = self.begun = atomic.begin(self._path)
        plans, self._metadata = self._planner.create_global_plan(list(wishes))
        return [_Task(folder, plan) for plan in _writer(folder).prepare_global_plan(plans)]

    def write(self, task: _Task) -> _Written:
        """Write and seal this rank's files: the disk works on the small ones meanwhile."""
        folder, rank = task.folder, self._rank
        torch.save(dict(self._own), folder / rank_file(rank))
        small = [folder / rank_file(rank)]
        if rank == 0:
            torch.save(self._skeleton, folder / COMMON)
            small.append(folder / COMMON)
        with ThreadPoolExecutor(1) as pool:
            sealed = pool.submit(atomic.seal, small)
            objects = not all(_loads_restricted(file) for file in small)
            plan = self._planner.finish_plan(task.plan)
            results = _writer(folder).write_data(plan, self._planner).wait()
            records = atomic.seal(folder.glob(f"__{rank}_*")) | sealed.result()
        return _Written(results, records, objects)

    def publish(self, written: Sequence[_Written]) -> list[None]:
        """On rank 0: the metadata, the manifest and the name."""
        assert self.begun is not None and self._metadata is not None  # `assign` came before
        folder = self.begun
        _writer(folder).finish(self._metadata, [part.results for part in written])
        dcp_metadata.read_metadata(folder)  # every tensor is tiled exactly once
        records: Records = {name: r for part in written for name, r in part.records.items()}
        records[dcp_metadata.NAME] = atomic.file_record(folder / dcp_metadata.NAME)
        objects = any(part.objects for part in written)
        facts = {"world_size": len(written), "objects": objects}
        atomic.publish(folder, self._path, records, [dcp_metadata.NAME], **facts)
        return [None] * len(written)


def _refuse_unreadable(key: str, tensor: Tensor) -> None:
    """Check that a tensor is an array of numbers: what else DCP writes it does not read back."""
    if tensor.is_meta:
        raise ValueError(f"{key!r} is on the meta device and has no values")
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise ValueError(f"{key!r} is {'quantized' if tensor.is_quantized else kind}")


def _refuse_differences(wishes: Sequence[SavePlan], names: Collection[str]) -> None:
    """Check that the ranks have the tensors `names`, which rank 0 has, all of them alike.

    Of different ones DCP keeps the first that it meets; and what rank 0 has not is not in the
    skeleton, which is rank 0's, so that a load would leave it out.
    """
    known: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for rank, wish in enumerate(wishes):
        for item in wish.items:
            name, about = item.index.fqn, item.tensor_data
            assert about is not None  # `split` gives tensors only
            kind = about.properties.dtype, tuple(about.size)
            if name not in names:
                raise ValueError(f"rank {rank} has {name!r}, which rank 0 has not")
            first = known.setdefault(name, kind)
            if kind != first:
                raise ValueError(
                    f"{name!r} is {kind[0]} {kind[1]} on rank {rank}, {first[0]} {first[1]} before"
                )


def _writer(folder: Path) -> FileSystemWriter:
    # Made durable later, while the checksums are taken. Its `prepare_local_plan` is left out: it
    # makes the folder, which rank 0 has made.
    return FileSystemWriter(folder, overwrite=False, sync_files=False)


def _loads_restricted(path: Path) -> bool:
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return False
    return True
