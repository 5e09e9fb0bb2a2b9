"""The global random streams: how the suite seeds them, and which ranks were left to share one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pytest_cplife.evidence.snapshot import rng_digests
from pytest_cplife.scenarios.meeting import meeting
from pytest_cplife.seeding import seed_torch


@dataclass(frozen=True, slots=True)
class Owners:
    """By stream, the rank after which a rank's stream is seeded: the first that shares it."""

    torch: int
    cuda: int
    numpy: int
    python: int

    @classmethod
    def alone(cls, rank: int) -> Owners:
        """Those of a rank that shares no stream."""
        return cls(rank, rank, rank, rank)


def find_owners(rank: int) -> Owners:
    """Compare the streams of all ranks as they are now. Collective, where there is a group.

    Ranks that a trainer has seeded alike may count on it, for the order of samples that each of
    them draws for itself; ranks that it has seeded apart draw noise. The suite's seeds have to
    leave both as they are.
    """
    mine = rng_digests()
    with meeting() as all_ranks:
        everyone = all_ranks.gather(mine)
    return first_alike(everyone, rank) if len(everyone) > 1 else Owners.alone(rank)


def first_alike(everyone: Sequence[Mapping[str, str]], rank: int) -> Owners:
    """The first rank with `rank`'s state of each stream.

    Args:
        everyone: digests of the streams, by rank and name; "cuda" is there where CUDA is in use.
    """
    mine = everyone[rank]

    def first(stream: str) -> int:
        return next(r for r, its in enumerate(everyone) if its.get(stream) == mine[stream])

    # torch seeds a device that is not in use yet as it seeds the CPU.
    cuda = first("cuda" if "cuda" in mine else "torch")
    return Owners(torch=first("torch"), cuda=cuda, numpy=first("numpy"), python=first("python"))


def seed_streams(seed: int, owners: Owners, moment: int) -> None:
    """Seed torch (every device), NumPy and ``random`` from a hash, so that owners never collide."""
    seed_torch(_word(seed, owners.torch, moment, 0))
    if owners.cuda != owners.torch:
        torch.cuda.manual_seed_all(_word(seed, owners.cuda, moment, 0))
    np.random.seed(_word(seed, owners.numpy, moment, 1))
    random.seed(_word(seed, owners.python, moment, 2))


def _word(seed: int, rank: int, moment: int, position: int) -> int:
    return int(np.random.SeedSequence([seed, rank, moment]).generate_state(3)[position])
