"""The ``.metadata`` file of torch.distributed.checkpoint, read without running what is in it.

torch 2.13 gives the file to ``pickle.load``, which executes whatever it names, checks neither
its version nor that the chunks of a tensor cover it, and joins its paths to the directory
unseen: a hole leaves the target untouched, silently.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""

NAME = ".metadata"
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")


def read_metadata(path: Path) -> Metadata:
    """The metadata of the DCP directory `path`, checked.

    Raises:
        ValueError: it names other code, leaves the directory, or its chunks do not cover
            every tensor exactly once.
    """
    with (path / NAME).open("rb") as content:
        try:
            metadata = _Restricted(content).load()
        except Exception as error:  # a damaged pickle raises nearly anything
            raise ValueError(f"{path / NAME} cannot be read: {error}") from error
    if not isinstance(metadata, Metadata):
        raise ValueError(f"{path / NAME} holds a {type(metadata).__name__}")
    for file in {info.relative_path for info in (metadata.storage_data or {}).values()}:
        relative = PurePosixPath(file)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"{path / NAME} points to {str(relative)!r}, outside the directory")
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            _check_tiling(f"{path / NAME}: {key!r}", entry)
    return metadata


def _meet(one: Box, other: Box) -> bool:
    pairs = zip(*one, *other, strict=True)
    return all(a < b + m and b < a + n for a, n, b, m in pairs)


def _check_tiling(what: str, entry: TensorStorageMetadata) -> None:
    """Chunks inside the tensor, no two overlapping, volumes adding up: tiled exactly once."""
    boxes: list[Box] = [
        (tuple(c.offsets), tuple(c.sizes)) for c in entry.chunks if math.prod(c.sizes)
    ]
    for offsets, sizes in boxes:
        ends = [start + length for start, length in zip(offsets, sizes, strict=True)]
        if any(end > size for end, size in zip(ends, entry.size, strict=True)):
            raise ValueError(f"{what} has a chunk at {offsets} of {sizes} outside {entry.size}")
    # Sorted along one dimension, two boxes that overlap need not be neighbours, but one then
    # starts there before the other has ended: only those are compared. They are fewest along the
    # dimension with the most cuts.
    starts = [len({offsets[dim] for offsets, _ in boxes}) for dim in range(len(entry.size))]
    along = max(range(len(starts)), key=starts.__getitem__, default=0)
    boxes.sort(key=lambda box: box[0][along : along + 1])
    for index, box in enumerate(boxes):
        for other in map(boxes.__getitem__, range(index + 1, len(boxes))):
            if starts and other[0][along] >= box[0][along] + box[1][along]:
                break
            if _meet(box, other):
                raise ValueError(f"{what} is written twice at {other[0]}")
    if sum(math.prod(sizes) for _, sizes in boxes) != math.prod(entry.size):
        raise ValueError(f"{what} is not covered by its chunks")


class CheckedReader(FileSystemReader):
    """torch's reader with metadata that `read_metadata` has checked."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        super().__init__(path)
        self._folder = path
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._metadata.storage_meta = self._metadata.storage_meta or StorageMeta()
        self._metadata.storage_meta.load_id = self.load_id
        return self._metadata
