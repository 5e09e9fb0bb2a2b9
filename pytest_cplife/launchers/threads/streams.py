"""The global random streams, which every rank must have to itself."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

SEED = 20
"""What every stream of every rank starts from at every call, as in the other launchers."""

_WORDS = 625  # of MT19937: 624 of state and a position
_MT19937_BYTES = 4 * _WORDS


class TorchStream:
    """torch's default CPU generator."""

    def __init__(self) -> None:
        self._seeded = torch.Generator().manual_seed(SEED).get_state()

    def fresh(self, host: torch.Tensor) -> torch.Tensor:
        return self._seeded

    def read(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def write(self, value: torch.Tensor) -> None:
        torch.default_generator.set_state(value)


class CudaStreams:
    """The generators of all CUDA devices; nothing at all until somebody uses CUDA."""

    def __init__(self) -> None:
        self._used: Callable[[], bool] = torch.cuda.is_initialized

    def fresh(self, host: Any) -> list[torch.Tensor] | None:
        return None

    def read(self) -> list[torch.Tensor] | None:
        return torch.cuda.get_rng_state_all() if self._used() else None

    def write(self, value: list[torch.Tensor] | None) -> None:
        if value is not None:
            torch.cuda.set_rng_state_all(value)
        elif self._used():
            torch.cuda.manual_seed_all(SEED)


class PythonStream:
    """The `random` module's."""

    def __init__(self) -> None:
        self._seeded = random.Random(SEED).getstate()

    def fresh(self, host: Any) -> Any:
        return self._seeded

    def read(self) -> Any:
        return random.getstate()

    def write(self, value: Any) -> None:
        random.setstate(value)


class NumpyStream:
    """NumPy's legacy global stream.

    Its whole state takes a hundred microseconds to read and write. Exchanging the generator takes
    none, but loses the second half of a pair of normal variates, which only the whole state shows.
    So the whole state is read only where the rank has drawn since it got its turn, and written
    only where there is such a half.
    """

    def __init__(self) -> None:
        seeded = np.random.MT19937()
        seeded._legacy_seeding(SEED)
        self._seeded = _memory(seeded)
        self._entered: tuple[Any, bytes] | None = None

    def fresh(self, host: Any) -> tuple[Any, Any]:
        generator = np.random.MT19937()
        ctypes.memmove(generator.ctypes.state_address, self._seeded, _MT19937_BYTES)
        return generator, None

    def read(self) -> tuple[Any, Any]:
        generator = mtrand.get_bit_generator()
        if self._entered == (generator, _memory(generator)):
            return generator, None
        state = np.random.get_state(legacy=False)
        return generator, state if state["has_gauss"] else None

    def write(self, value: tuple[Any, Any]) -> None:
        generator, whole = value
        mtrand.set_bit_generator(generator)
        if whole is None:
            self._entered = generator, _memory(generator)
        else:
            np.random.set_state(whole)
            self._entered = None


def _memory(generator: Any) -> bytes:
    """The state of an MT19937 as NumPy documents its place in memory; nothing for other kinds."""
    if not isinstance(generator, np.random.MT19937):
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
