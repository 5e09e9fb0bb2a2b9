"""The random streams that ranks are given, and those that they are left to share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from pytest_cplife.evidence.snapshot import rng_digests
from pytest_cplife.scenarios.streams import Owners, first_alike, seed_streams


@pytest.fixture(autouse=True)
def streams_put_back() -> Iterator[None]:
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])


def digests(seed: int, rank: int, moment: int) -> dict[str, str]:
    seed_streams(seed, Owners.alone(rank), moment)
    return rng_digests()


def test_no_two_ranks_and_moments_share_a_stream() -> None:
    """Sums such as seed + rank + moment would: that is what RNG-02 looks for."""
    seen = [
        digests(seed, rank, moment)
        for seed, rank, moment in itertools.product((0, 1, 20, 21), range(8), range(4))
    ]
    for stream in ("torch", "numpy", "python"):
        assert len({one[stream] for one in seen}) == len(seen)


def test_streams_of_one_rank_draw_different_numbers() -> None:
    seed_streams(20, Owners.alone(0), 0)
    draws = {torch.rand(1).item(), float(np.random.rand()), random.random()}
    assert len(draws) == 3


def test_seeding_repeats() -> None:
    assert digests(20, 1, 2) == digests(20, 1, 2)


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 + 5, 2**64 - 1])
def test_any_seed_will_do(seed: int) -> None:
    assert digests(seed, 0, 0) != digests(seed, 1, 0)


def test_a_shared_stream_is_shared_and_the_others_are_not() -> None:
    mine = digests(20, 1, 3)
    seed_streams(20, replace(Owners.alone(1), torch=0, cuda=0), 3)
    sharing, first = rng_digests(), digests(20, 0, 3)
    assert sharing == {**mine, "torch": first["torch"]}
    assert first["numpy"] != mine["numpy"]


def test_the_first_rank_with_the_same_state_owns_a_stream() -> None:
    everyone = [
        {"torch": torch_state, "numpy": "same", "python": f"of {rank}"}
        for rank, torch_state in enumerate(("a", "b", "a", "b"))
    ]
    assert first_alike(everyone, 3) == Owners(torch=1, cuda=1, numpy=0, python=3)
    assert first_alike(everyone, 0) == Owners.alone(0)


def test_a_device_has_streams_of_its_own() -> None:
    everyone = [
        {"torch": "a", "cuda": f"of {rank}", "numpy": "n", "python": "p"} for rank in range(2)
    ]
    assert first_alike(everyone, 1) == Owners(torch=0, cuda=1, numpy=0, python=0)
