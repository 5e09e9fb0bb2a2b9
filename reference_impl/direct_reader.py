"""Shards read from their files straight into the tensors that they are for.

torch's reader makes a tensor of every chunk first and copies it then: two passes over the bytes
and fresh memory for one of them. The checksums that torch does not take cost about one pass. With
this reader a checked load takes no longer than torch's unchecked one.

A chunk is what ``torch.save`` wrote for one tensor: a zip archive that stores, uncompressed, the
bytes of the tensor's storage as ``data/0``. Those are the tensor's elements in order only where it
was contiguous, which the writer sees to; see `atomic.FORMAT_VERSION`.
"""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from .dcp_metadata import CheckedReader

LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a zip entry: after 26 bytes the lengths of its name and extra field; the data come next."""


class DirectReader(CheckedReader):
    """Reads contiguous chunks without a detour."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        stored = self._metadata.storage_data
        by_file: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_file[stored[item.storage_index].relative_path].append(item)
        for name, items in by_file.items():
            with (self._folder / name).open("rb") as file:
                for item in sorted(items, key=lambda item: stored[item.storage_index].offset):
                    info = stored[item.storage_index]
                    target = planner.resolve_tensor(item).detach()
                    self._read(_Section(file, info.offset, info.length), item, target)
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, section: _Section, item: ReadItem, target: Tensor) -> None:
        entry = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(entry, TensorStorageMetadata)  # read_shards has looked
        sizes = next(c.sizes for c in entry.chunks if c.offsets == item.storage_index.offset)
        dtype = entry.properties.dtype
        start, size = _data(section)
        if size != math.prod(sizes) * dtype.itemsize:
            raise ValueError(f"{item.storage_index.fqn!r} has {size} bytes for {sizes} of {dtype}")
        straight = (
            target.shape == sizes
            and target.dtype == dtype
            and target.is_cpu
            and target.is_contiguous()
        )
        chunk = target if straight else torch.empty(sizes, dtype=dtype)
        section.read_into(start, chunk)
        if not straight:
            for dim, (offset, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                chunk = chunk.narrow(dim, offset, length)
            target.copy_(chunk)


def _data(section: _Section) -> tuple[int, int]:
    """Where in an archive the bytes of its only tensor begin, and how many they are."""
    with zipfile.ZipFile(section) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        found = [name for name in entries if name.startswith("data/")]
        if found != ["data/0"] or entries["data/0"].compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"a chunk is no archive of one tensor: it has {sorted(entries)}")
        order = archive.read(entries["byteorder"]).decode()
        if order != sys.byteorder:
            raise ValueError(f"written on a {order}-endian machine, and this one is not")
    entry = entries["data/0"]
    section.seek(entry.header_offset)
    name, extra = LOCAL_HEADER.unpack(section.read(LOCAL_HEADER.size))
    return entry.header_offset + LOCAL_HEADER.size + name + extra, entry.file_size


class _Section(io.RawIOBase):
    """Part of a file, as a file."""

    def __init__(self, file: io.BufferedReader, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self._length = length
        self._position = 0

    def read_into(self, start: int, tensor: Tensor) -> None:
        """Fill the contiguous `tensor` with the bytes from `start` on."""
        if not tensor.numel():
            return
        memory = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        self._file.seek(self._offset + start)
        if start + len(memory) > self._length or self._file.readinto(memory) != len(memory):
            raise ValueError(f"{self._file.name} ends within a tensor")

    def readinto(self, buffer: Any) -> int:
        memory = memoryview(buffer)[: max(self._length - self._position, 0)]
        self._file.seek(self._offset + self._position)
        count = self._file.readinto(memory)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
