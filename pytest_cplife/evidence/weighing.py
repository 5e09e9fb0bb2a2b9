"""Memory that tensors take while a trainer saves or loads, counted tensor by tensor.

What is counted are the storages of tensors that come to be inside the block, on every device, from
the operator that made them until they are freed. The process's own size would say nothing: a model
of a few kilobytes is lost in what pickling, files and sockets take.

Not counted: storages that lie in a mapped file, which all ranks of a host share; what an operator
allocates and frees again before it returns; what other threads than the one in the block make.
Numbers without a fraction are counted apart: pickled objects that ranks send each other, random
states and ids are such, and can be more than a small model.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MAPS = Path("/proc/self/maps")


@dataclass(slots=True)
class Weight:
    """What one rank's tensors took.

    Attributes:
        peak: the most bytes at one time, over what there was before.
        whole_numbers: the most bytes of integer tensors at one time, which are not in `peak`.
    """

    peak: int = 0
    whole_numbers: int = 0


def can_weigh() -> bool:
    """Whether this system tells mapped files from memory."""
    return _MAPS.exists()


@contextmanager
def weighing() -> Iterator[Weight]:
    """Count the tensors made inside the block; the result is complete when it is left."""
    weight = Weight()
    floats, integers = _Scale(), _Scale()
    gc.collect()  # what only cycles hold is not freed inside
    with _Meter(floats, integers):
        yield weight
    weight.peak, weight.whole_numbers = floats.peak, integers.peak


@dataclass(slots=True)
class _Scale:
    held: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the result of every operator below autograd and below DTensor."""

    def __init__(self, floats: _Scale, integers: _Scale) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._floats = floats
        self._integers = integers
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # Its local part is of interest: torch comes back with it.
            return NotImplemented
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {_identity(value) for value in tree_leaves((args, kwargs))}
        # A storage that a tensor is set to was filled elsewhere, such as by reading a file.
        from_file = func.overloadpacket is torch.ops.aten.set_
        for tensor in tree_leaves(result):
            if _has_memory(tensor):
                storage = tensor.untyped_storage()
                new = storage._cdata not in given or (from_file and not _is_mapped(storage))
                if new and storage._cdata not in self._known:
                    fractions = tensor.is_floating_point() or tensor.is_complex()
                    self._count(storage, self._floats if fractions else self._integers)
        return result

    def _count(self, storage: torch.UntypedStorage, scale: _Scale) -> None:
        size, key = storage.nbytes(), storage._cdata
        self._known.add(key)
        scale.add(size)
        # The storage keeps its Python object for as long as any tensor has it.
        weakref.finalize(storage, self._freed, key, size, scale).atexit = False

    def _freed(self, key: int, size: int, scale: _Scale) -> None:
        self._known.discard(key)
        scale.add(-size)


def _has_memory(value: Any) -> bool:
    """False also for tensors that wrap others (what is inside was counted when it was made)."""
    return (
        isinstance(value, Tensor)
        and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
        and value.layout is torch.strided
        and value.device.type != "meta"
    )


def _identity(value: Any) -> int:
    if _has_memory(value):
        return int(value.untyped_storage()._cdata)
    return int(value._cdata) if isinstance(value, torch.UntypedStorage) else 0


def _is_mapped(storage: torch.UntypedStorage) -> bool:
    if storage.device.type != "cpu":
        return False
    address = storage.data_ptr()
    for line in _MAPS.read_text().splitlines():
        span, *_, name = line.split(maxsplit=5) if line.count(" ") > 4 else (line, "")
        start, _, end = span.partition("-")
        if int(start, 16) <= address < int(end, 16):
            return _names_a_file(name)
    return False


def _names_a_file(name: str) -> bool:
    """Whether a mapping's name is that of a file that other processes can open, too.

    Memory that torch shares between processes is a file as well, whose name is gone at once.
    """
    if name.startswith("/dev/shm/"):
        return not name.endswith(" (deleted)")
    return name.startswith("/") and not name.startswith(("/dev/", "/SYSV"))
