"""Random streams: one per rank, never two alike, and scalars that all ranks agree on.

`seed + rank + epoch + step` is the obvious offset and a wrong one: rank 1 at step 4 is rank 0
at step 5. :class:`numpy.random.SeedSequence` is a hash made for this.
"""

from __future__ import annotations

import enum
import random
from typing import Any

import numpy as np
import torch


class Purpose(enum.IntEnum):
    """What a stream is for; streams of two purposes never share a seed."""

    GLOBAL = 0
    CONTROL = 1
    SAMPLES = 2
    ORDER = 3


def sequence(purpose: Purpose, seed: int, *coordinates: int) -> np.random.SeedSequence:
    """The hash of `seed` and `coordinates` for one purpose.

    Every number takes two words: left to itself SeedSequence gives a large one two and a
    small one one, so that other numbers in a row can spell the same words.
    """
    words = [half for value in (seed, *coordinates) for half in (value & 0xFFFFFFFF, value >> 32)]
    return np.random.SeedSequence(words, spawn_key=(int(purpose),))


def stream_seed(seed: int, rank: int, epoch: int, step: int) -> int:
    """The 63-bit seed of the global streams of one (global) rank at one point of the run."""
    words = sequence(Purpose.GLOBAL, seed, rank, epoch, step).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def seed_streams(seed: int, rank: int, epoch: int, step: int) -> None:
    """Seed Python's, NumPy's and torch's global streams for one rank at one point of the run.

    At a resume this gives streams that no rank has used before, the same ones each time.
    """
    word = stream_seed(seed, rank, epoch, step)
    random.seed(word)
    np.random.seed(word % 2**32)
    torch.manual_seed(word)


def shared_integer(seed: int, rank: int, step: int, low: int, high: int) -> int:
    """One rank's draw from ``[low, high)`` for `step`, from no global stream.

    Ranks draw differently: whatever steers control flow must be broadcast before its use.
    """
    draw = np.random.default_rng(sequence(Purpose.CONTROL, seed, rank, step))
    return int(draw.integers(low, high))


def get_streams() -> dict[str, Any]:
    """The state of this rank's global streams, for the ``restore`` policy."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        # As built-in values: NumPy's own tuple holds an array, which restricted unpickling refuses.
        "numpy": (name, np.asarray(keys).tolist(), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if _cuda() else [],
    }


def set_streams(state: dict[str, Any]) -> None:
    """Put back what `get_streams` returned."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and _cuda():
        torch.cuda.set_rng_state_all(state["cuda"])


def _cuda() -> bool:
    # Not is_available(): asking for a state would start CUDA on a rank that does not use it.
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
