"""One rank's failure is every rank's, wherever it comes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch.distributed as dist
from pytest_cplife.reference_impl.agreement import CheckpointError, agreed, first, led

from .ranks import run_ranks, run_serial

RANKS = 3


def failing(rank: int) -> str:
    if rank_here() == rank:
        raise OSError(f"disk of rank {rank} is full")
    return f"from {rank_here()}"


def rank_here() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def led_by(rank: int, leads: bool = True) -> str:
    def lead(values: Sequence[str]) -> list[str]:
        if not leads:
            raise OSError("no room for a folder")
        return [f"{value} to {number}" for number, value in enumerate(values)]

    return led("saving", lambda: failing(rank), lead)


def under_agreed(rank: int) -> None:
    with agreed("saving"):
        failing(rank)


def told(body: object, *args: object) -> str:
    """What a rank is told, and that the next exchange finds everybody in step."""
    try:
        assert callable(body)
        answer = str(body(*args))
    except CheckpointError as error:
        answer = str(error)
    if dist.is_initialized():
        dist.barrier()
    return answer


def test_every_rank_gets_its_own_part() -> None:
    wanted = [f"from {rank} to {rank}" for rank in range(RANKS)]
    assert run_ranks(RANKS, told, led_by, -1) == wanted
    assert run_serial(told, led_by, -1) == wanted[0]


@pytest.mark.parametrize("body", [led_by, under_agreed])
@pytest.mark.parametrize("rank", range(RANKS))
def test_who_failed_is_told_to_all(body: object, rank: int) -> None:
    message = f"saving: rank {rank} failed: OSError: disk of rank {rank} is full"
    assert run_ranks(RANKS, told, body, rank) == [message] * RANKS


def test_a_leader_that_fails_is_told_to_all() -> None:
    message = "saving: rank 0 failed: OSError: no room for a folder"
    assert run_ranks(RANKS, told, led_by, -1, False) == [message] * RANKS
    alone = message.replace("rank 0", "this process")
    assert run_serial(told, led_by, -1, False) == alone


def test_the_first_rank_alone() -> None:
    work, spoiled = partial(failing, -1), partial(failing, 0)
    assert run_ranks(RANKS, told, first, "looking", work) == ["from 0"] * RANKS
    message = "looking: rank 0 failed: OSError: disk of rank 0 is full"
    assert run_ranks(RANKS, told, first, "looking", spoiled) == [message] * RANKS
