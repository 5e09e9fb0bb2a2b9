"""A checkpoint file as evidence: records of what its view and its payload hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.evidence.observe import flat_values, view_value
from pytest_cplife.evidence.records import GroupRecord, Record
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.evidence.walk import containers, walk

WRAPPER_PARTS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""What DDP, torch.compile, activation checkpointing and FSDP put into the names of parameters."""


@dataclass(frozen=True, slots=True)
class FileOptimizer:
    """One optimizer in a file: state by the file's own key (an FQN, or an integer as text).

    `listed` is true where every group says beside its numbers which names they stand for.
    """

    state: dict[str, dict[str, Record]]
    groups: tuple[GroupRecord, ...]
    listed: bool = False

    @property
    def integer_keys(self) -> bool:
        keys = [key for group in self.groups for key in group.names] or list(self.state)
        return bool(keys) and all(key.isdigit() for key in keys)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a checkpoint file holds.

    Attributes:
        model: the model's state by key, in the file's order.
        prefix: what stood before every key.
        versions: module versions by the module's name, as ``state_dict()`` notes them; empty where
            the file did not keep them.
        dtensors: paths of the DTensors anywhere in the payload.
        storages: for each distinct storage the path of its first tensor, its size in bytes, and
            the bytes that all tensors over it need.
        bytes_on_disk: size of the file, or of all files of the directory.
        wrapped: paths of keys and texts anywhere in the payload that are names of the model's with
            a wrapper's part in them.
        paths: the path of every leaf of the payload.
    """

    model: dict[str, Record]
    prefix: str
    versions: dict[str, int]
    optimizers: tuple[FileOptimizer, ...]
    ema: dict[str, Record] | None
    counters: dict[str, int]
    dtensors: tuple[str, ...]
    storages: tuple[tuple[str, int, int], ...]
    bytes_on_disk: int
    wrapped: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def view_file(path: Path, view: CheckpointView, store: TensorStore) -> FileRecord:
    """Record the view of the checkpoint at `path`."""
    leaves = list(walk(view.payload))
    return FileRecord(
        model=_records(view.model, store),
        prefix=view.prefix,
        versions=module_versions(view.model, view.prefix),
        optimizers=tuple(_optimizer(node, store) for node in view.optimizers),
        ema=None if view.ema is None else _records(view.ema, store),
        counters=dict(view.counters),
        dtensors=tuple(path for path, leaf in leaves if isinstance(leaf, DTensor)),
        storages=_storages(leaves),
        bytes_on_disk=_size(path),
        wrapped=_wrapped(view, leaves),
        paths=tuple(path for path, _ in leaves),
    )


def module_versions(state: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    """Versions of modules by name, out of what ``state_dict()`` has given or a file has kept."""
    noted = getattr(state, "_metadata", None) or {}
    return {
        name.removeprefix(prefix): entry["version"]
        for name, entry in noted.items()
        if isinstance(entry, Mapping) and isinstance(entry.get("version"), int)
    }


def _records(mapping: Mapping[str, Any], store: TensorStore) -> dict[str, Record]:
    return {str(key): view_value(value, store) for key, value in mapping.items()}


def _optimizer(node: Mapping[str, Any], store: TensorStore) -> FileOptimizer:
    groups = []
    for index, group in enumerate(node["param_groups"]):
        values: dict[str, Record] = {}
        for key, value in group.items():
            if key not in ("params", "param_names"):
                values.update(flat_values(value, store, str(key)))
        names = tuple(str(name) for name in group.get("params", ()))
        groups.append(GroupRecord(0, index, names, values))
    state = {
        str(key): flat_values(entries, store) if entries else {}
        for key, entries in node["state"].items()
        if isinstance(entries, Mapping)
    }
    listed = all(
        len(group.get("param_names", ())) == len(group.get("params", ()))
        for group in node["param_groups"]
    )
    return FileOptimizer(state, tuple(groups), listed)


def _wrapped(view: CheckpointView, leaves: list[tuple[str, Any]]) -> tuple[str, ...]:
    names = {str(key) for key in view.model}

    def wraps(text: object) -> bool:
        # A model may well have a module called `module`: what counts is that the name without the
        # wrapper's part is one of the model's, and the name with it is none.
        return isinstance(text, str) and text not in names and bare(text) in names

    keys = [
        f"{path}[{key!r}]" if path else str(key)
        for path, node in containers(view.payload)
        # What stands before every key of the model is told as its prefix.
        if not (view.prefix and path == view.model_path)
        for key in node
        if wraps(key)
    ]
    return tuple(keys + [path for path, leaf in leaves if wraps(leaf)])


def bare(name: str) -> str:
    """A parameter's name without the parts that wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPER_PARTS)


def _storages(leaves: list[tuple[str, Any]]) -> tuple[tuple[str, int, int], ...]:
    behind: dict[int, tuple[str, int]] = {}
    needed: dict[int, dict[tuple[int, tuple[int, ...], tuple[int, ...]], int]] = {}
    for path, leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            continue
        local = leaf.to_local() if isinstance(leaf, DTensor) else leaf
        storage = local.untyped_storage()
        if not storage.nbytes():
            continue
        behind.setdefault(storage.data_ptr(), (path, storage.nbytes()))
        # Two names of a tied tensor need its bytes once.
        view = (int(local.storage_offset()), tuple(local.shape), tuple(local.stride()))
        needed.setdefault(storage.data_ptr(), {})[view] = local.numel() * local.element_size()
    return tuple(
        (path, size, sum(needed[pointer].values())) for pointer, (path, size) in behind.items()
    )


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)
