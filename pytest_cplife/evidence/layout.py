"""What a sharded checkpoint's directory holds, without its values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

Shape = tuple[int, ...]
Box = tuple[Shape, Shape]
"""Offsets and sizes of a chunk."""


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Files of a sharded checkpoint, and the chunks in which each tensor is kept.

    Attributes:
        metadata: how many ``.metadata`` files there are.
        files: size in bytes of each data file by name.
        chunks: for each tensor its global shape and its chunks.
    """

    metadata: int
    files: dict[str, int]
    chunks: dict[str, tuple[Shape, list[Box]]]


def data_files(path: Path) -> list[Path]:
    """The data files at any depth below `path`."""
    return sorted(path.rglob("*.distcp"))


def view_layout(path: Path) -> ShardLayout:
    """Read the metadata of the sharded checkpoint at `path`."""
    found = sorted(path.rglob(".metadata"))
    chunks: dict[str, tuple[Shape, list[Box]]] = {}
    for file in found:
        metadata = FileSystemReader(file.parent).read_metadata()
        for name, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                parts = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
                chunks[name] = (tuple(entry.size), parts)
    sizes = {file.name: file.stat().st_size for file in data_files(path)}
    return ShardLayout(len(found), sizes, chunks)


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
