"""What a rank is told, and the random streams it starts with."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_cplife.evidence.snapshot import rng_digests
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.scenarios.order import Order, seed_streams


@pytest.fixture(autouse=True)
def streams_put_back() -> Iterator[None]:
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])


def digests(seed: int, rank: int, moment: int) -> dict[str, str]:
    seed_streams(seed, rank, moment)
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
    seed_streams(20, 0, 0)
    draws = {torch.rand(1).item(), float(np.random.rand()), random.random()}
    assert len(draws) == 3


def test_seeding_repeats() -> None:
    assert digests(20, 1, 2) == digests(20, 1, 2)


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 + 5, 2**64 - 1])
def test_any_seed_will_do(seed: int) -> None:
    assert digests(seed, 0, 0) != digests(seed, 1, 0)


def order(folder: Path) -> Order:
    return Order("mod:Adapter", MeshSpec.parse("dp=2"), folder / "run", folder / "s", (3, 2), 20)


def test_folders(tmp_path: Path) -> None:
    one = order(tmp_path)
    one.prepare()
    assert (one.folder / "workdir").is_dir()
    assert one.output.parent.is_dir()
    assert not one.output.exists()
    assert one.journal(0) != one.journal(1)
    assert one.journal(1).parent == one.folder


def test_an_order_travels_and_turns_serial(tmp_path: Path) -> None:
    one = order(tmp_path)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.serially().spec is None
    assert one.serially().folder == one.folder
