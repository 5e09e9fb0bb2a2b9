"""What a sharded checkpoint's directory holds, without its values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

Shape = tuple[int, ...]
Box = tuple[Shape, Shape]
"""Offsets and sizes of a chunk."""
_AVERAGES = re.compile(r"ema|swa|avg|average|shadow", re.I)


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Files of a sharded checkpoint, and the chunks in which each tensor is kept.

    Attributes:
        metadata: how many ``.metadata`` files there are.
        files: size in bytes of each data file by name.
        chunks: for each tensor its global shape and its chunks.
        written: bytes of tensors that each data file holds, headers apart.
        largest: bytes of the largest piece in them.
        strays: data files that the metadata says nothing is in, and that are not empty either.
        absent: files that the metadata says something is in, and that are not there.
        unfinished: files by whose names they were to be renamed once they were written.
    """

    metadata: int
    files: dict[str, int]
    chunks: dict[str, tuple[Shape, list[Box]]]
    written: dict[str, int] = field(default_factory=dict)
    largest: int = 0
    strays: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    def written_by(self, rank: int) -> int:
        """Bytes of tensors in the files of `rank`, by their names."""
        return sum(n for name, n in self.written.items() if name.startswith(f"__{rank}_"))


def data_files(path: Path) -> list[Path]:
    """The data files at any depth below `path`."""
    return sorted(path.rglob("*.distcp"))


def view_layout(path: Path) -> ShardLayout:
    """Read the metadata of the sharded checkpoint at `path`."""
    found = sorted(path.rglob(".metadata"))
    chunks: dict[str, tuple[Shape, list[Box]]] = {}
    written: dict[str, int] = {}
    largest = 0
    named: set[Path] = set()
    for file in found:
        metadata = FileSystemReader(file.parent).read_metadata()
        for name, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                parts = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
                chunks[name] = (tuple(entry.size), parts)
        for file_name, size in _pieces(metadata):
            written[file_name] = written.get(file_name, 0) + size
            largest = max(largest, size)
        places = (metadata.storage_data or {}).values()
        named.update(file.parent / info.relative_path for info in places)
    present = {file: file.stat().st_size for file in data_files(path)}
    return ShardLayout(
        metadata=len(found),
        files={file.name: size for file, size in present.items()},
        chunks=chunks,
        written=written,
        largest=largest,
        # torch opens a file for each rank, also for one that has nothing to write.
        strays=tuple(file.name for file, size in present.items() if size and file not in named),
        absent=tuple(sorted(file.name for file in named if not file.exists())),
        unfinished=tuple(sorted(file.name for file in path.rglob("*.tmp"))),
    )


def _pieces(metadata: Metadata) -> Iterator[tuple[str, int]]:
    """For each piece of a tensor the name of its file, and its bytes."""
    for index, info in (metadata.storage_data or {}).items():
        entry = metadata.state_dict_metadata.get(index.fqn)
        if isinstance(entry, TensorStorageMetadata):
            itemsize = entry.properties.dtype.itemsize
            for chunk in entry.chunks:
                if index.offset is None or chunk.offsets == index.offset:
                    yield PurePosixPath(info.relative_path).name, chunk.sizes.numel() * itemsize
                    break


def model_keys(keys: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """The keys of the model's tensors by FQN: those under the prefix that has the most of `names`.

    Empty where no prefix has half of them.
    """
    present = set(keys)
    prefixes: dict[str, int] = {}
    for key in present:
        for name in names:
            if key == name or key.endswith(f".{name}"):
                prefix = key.removesuffix(name)
                prefixes[prefix] = prefixes.get(prefix, 0) + 1
    if not prefixes:
        return {}
    # Averages have the weights' names as well; where they have as many, the word tells them.
    best = max(prefixes, key=lambda p: (prefixes[p], not _AVERAGES.search(p), -len(p), p))
    if prefixes[best] * 2 < len(names):
        return {}
    return {name: best + name for name in names if best + name in present}


def read_model_part(path: Path, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors under the model's keys by FQN, plain and full; no other key is read.

    The checkpoint must be of one's own making: torch unpickles its metadata.

    Raises:
        ValueError: the metadata has no keys that go by `names`.
    """
    (file,) = sorted(path.rglob(".metadata"))[:1] or [path / ".metadata"]
    reader = FileSystemReader(file.parent)
    entries = {
        key: entry
        for key, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    keys = model_keys(entries, names)
    if not keys:
        raise ValueError(f"no keys go by the model's names, but {', '.join(sorted(entries)[:8])}")
    tensors = {
        key: torch.zeros(entries[key].size, dtype=entries[key].properties.dtype)
        for key in keys.values()
    }
    load(tensors, storage_reader=reader, no_dist=True)
    return {name: tensors[key] for name, key in keys.items()}


def tiling_problem(size: Shape, parts: list[Box]) -> str:
    """Why `parts` do not cover a tensor of `size` exactly once; "" where they do."""
    boxes = [(offsets, sizes) for offsets, sizes in parts if 0 not in sizes]
    for offsets, sizes in boxes:
        if any(o + s > limit for o, s, limit in zip(offsets, sizes, size, strict=True)):
            return f"a chunk {offsets} + {sizes} reaches past the end"
    for i, (offsets, sizes) in enumerate(boxes):
        for other, extent in boxes[:i]:
            overlaps = [
                a < b + y and b < a + x
                for a, x, b, y in zip(offsets, sizes, other, extent, strict=True)
            ]
            if all(overlaps):
                return f"chunks at {other} and {offsets} overlap"
    covered, wanted = sum(_volume(sizes) for _, sizes in boxes), _volume(size)
    return "" if covered == wanted else f"{wanted - covered} of {wanted} elements are in no chunk"


def _volume(shape: Shape) -> int:
    volume = 1
    for size in shape:
        volume *= size
    return volume
