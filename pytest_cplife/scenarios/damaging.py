"""Copies of a sharded checkpoint with something wrong: in a data file, or in the metadata."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from pytest_cplife.evidence.layout import data_files
from pytest_cplife.scenarios.editing import NothingToEdit
from pytest_cplife.scenarios.marking import Mark

Damage = Callable[[Path], str]
"""Spoils the copy of a checkpoint in the folder it is given; returns what it touched.

Raises:
    NothingToEdit: the checkpoint has no such part.
"""


def damaged_copy(source: Path, folder: Path, name: str) -> str:
    """Copy the checkpoint `source` to `folder` and do the damage `name`; what was touched.

    Raises:
        NothingToEdit: the checkpoint has no such part; there is no copy then.
    """
    shutil.copytree(source, folder)
    try:
        return DAMAGES[name](folder)
    except NothingToEdit:
        shutil.rmtree(folder)
        raise


def _missing_file(folder: Path) -> str:
    victim = _largest_file(folder)
    victim.unlink()
    return victim.name


def _truncated_file(folder: Path) -> str:
    victim = _largest_file(folder)
    with victim.open("r+b") as file:
        file.truncate(victim.stat().st_size // 2)
    return victim.name


def _flipped_bit(folder: Path) -> str:
    """The middle of the file is tensor data in any layout that is not mostly headers."""
    victim = _largest_file(folder)
    with victim.open("r+b") as file:
        position = victim.stat().st_size // 2
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x10]))
    return victim.name


def _hole(folder: Path) -> str:
    with _metadata(folder) as metadata:
        name = _largest_tensor(metadata)
        metadata.state_dict_metadata[name].chunks.pop()
    return name


def _missing_tensor(folder: Path) -> str:
    with _metadata(folder) as metadata:
        name = _largest_tensor(metadata)
        del metadata.state_dict_metadata[name]
        for index in [index for index in metadata.storage_data if index.fqn == name]:
            del metadata.storage_data[index]
        # What lists the names once more, for nested states, must not contradict it.
        if isinstance(metadata.planner_data, dict):
            metadata.planner_data.pop(name, None)
    return name


def _unknown_tensor(folder: Path) -> str:
    with _metadata(folder) as metadata:
        name = _largest_tensor(metadata)
        head, dot, tail = name.rpartition(".")
        unknown = f"{head}{dot}of_another_architecture_{tail}"
        metadata.state_dict_metadata[unknown] = copy.deepcopy(metadata.state_dict_metadata[name])
        for index, info in list(metadata.storage_data.items()):
            if index.fqn == name:
                metadata.storage_data[replace(index, fqn=unknown)] = info
        if isinstance(metadata.planner_data, dict) and name in metadata.planner_data:
            path = metadata.planner_data[name]
            metadata.planner_data[unknown] = (*path[:-1], unknown.rpartition(".")[2])
    return unknown


def _other_dtype(folder: Path) -> str:
    """One tensor in float64, with values that float32 does not have."""
    with _metadata(folder) as metadata:
        name = _largest_tensor(metadata)
        entry = metadata.state_dict_metadata[name]
        if entry.properties.dtype is not torch.float32:
            raise NothingToEdit("the largest tensor of the checkpoint is not of float32")
        index = next(iter(index for index in metadata.storage_data if index.fqn == name))
        wide = torch.full(tuple(entry.size), 1 / 3, dtype=torch.float64)
        info = _append(folder, metadata.storage_data[index], wide)
        entry.properties.dtype = torch.float64
        entry.chunks[:] = [
            replace(entry.chunks[0], offsets=torch.Size([0] * wide.dim()), sizes=wide.shape)
        ]
        for old in [index for index in metadata.storage_data if index.fqn == name]:
            del metadata.storage_data[old]
        metadata.storage_data[MetadataIndex(name, [0] * wide.dim())] = info
    return name


def _later_version(folder: Path) -> str:
    with _metadata(folder) as metadata:
        if not hasattr(metadata, "version"):
            raise NothingToEdit("the metadata has no version")
        metadata.version = "99.0.0"
    return "version 99.0.0"


def _code_in_metadata(folder: Path) -> str:
    with _metadata(folder) as metadata:
        metadata.planner_data = Mark(CODE_IN_METADATA, metadata.planner_data)
    return _metadata_file(folder).name


def _code_in_object(folder: Path) -> str:
    with _metadata(folder) as metadata:
        for index, info in metadata.storage_data.items():
            entry = metadata.state_dict_metadata.get(index.fqn)
            if isinstance(entry, BytesStorageMetadata):
                value = _read_item(folder, info)
                metadata.storage_data[index] = _append(folder, info, Mark(CODE_IN_OBJECT, value))
                return str(index.fqn)
        raise NothingToEdit("the checkpoint has no objects beside its tensors")


def _outside(folder: Path) -> str:
    """The pieces of one file are said to be in a whole copy of it, beside the directory."""
    with _metadata(folder) as metadata:
        root, victim = _metadata_file(folder).parent, _largest_file(folder)
        inside = victim.relative_to(root).as_posix()
        outside = f"../{folder.name}-outside.distcp"
        shutil.copyfile(victim, root / outside)
        for index, info in metadata.storage_data.items():
            if info.relative_path == inside:
                metadata.storage_data[index] = replace(info, relative_path=outside)
    return outside


CODE_IN_METADATA = "code in the metadata"
CODE_IN_OBJECT = "code in an object"
DAMAGES: dict[str, Damage] = {
    "a missing rank file": _missing_file,
    "a truncated rank file": _truncated_file,
    "a flipped bit": _flipped_bit,
    "a hole in the metadata": _hole,
    "a missing tensor": _missing_tensor,
    "an unknown tensor": _unknown_tensor,
    "a tensor of another dtype": _other_dtype,
    "a later version": _later_version,
    CODE_IN_METADATA: _code_in_metadata,
    CODE_IN_OBJECT: _code_in_object,
    "a path to the outside": _outside,
}
"""By name: what is wrong with the copy."""


def _largest_file(folder: Path) -> Path:
    files = data_files(folder)
    if not files:
        raise NothingToEdit("the checkpoint has no data files of torch's layout (*.distcp)")
    return max(files, key=lambda file: file.stat().st_size)


def _largest_tensor(metadata: Metadata) -> str:
    sizes = {
        name: entry.size.numel()
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    if not sizes:
        raise NothingToEdit("the metadata lists no tensors")
    return max(sizes, key=lambda name: sizes[name])


def _metadata_file(folder: Path) -> Path:
    found = sorted(folder.rglob(".metadata"))
    if not found:
        raise NothingToEdit("the checkpoint has no metadata of torch's layout")
    return found[0]


@contextmanager
def _metadata(folder: Path) -> Iterator[Any]:
    """The metadata, written back as the block leaves it.

    The checkpoint is the trainer's own, just saved, so that unpickling it here is safe.
    """
    file = _metadata_file(folder)
    metadata = pickle.loads(file.read_bytes())
    if not isinstance(metadata, Metadata) or metadata.storage_data is None:
        raise NothingToEdit(f"the metadata holds a {type(metadata).__name__}")
    yield metadata
    file.write_bytes(pickle.dumps(metadata))


def _append(folder: Path, info: Any, value: Any) -> Any:
    """Write `value` at the end of the file of `info`; where it is now."""
    item = io.BytesIO()
    torch.save(value, item)
    path = _metadata_file(folder).parent / info.relative_path
    offset = path.stat().st_size
    with path.open("ab") as file:
        file.write(item.getvalue())
    return replace(info, offset=offset, length=len(item.getvalue()))


def _read_item(folder: Path, info: Any) -> Any:
    with (_metadata_file(folder).parent / info.relative_path).open("rb") as file:
        file.seek(info.offset)
        return torch.load(io.BytesIO(file.read(info.length)), weights_only=False)
