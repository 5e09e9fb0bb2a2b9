"""Looking at ranks that have moved is cheap: what they have done is not asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from pytest_cplife.launchers import Launcher, samples, torch_private
from pytest_cplife.launchers.base import Rank
from pytest_cplife.launchers.deadlock import unmoved
from pytest_cplife.launchers.recorder import Recorder
from pytest_cplife.launchers.samples import Glance


def dumps_while_rank_1_computes(rank: Rank, seconds: float) -> int:
    """How often this rank's collectives have been asked for meanwhile."""
    dumps = 0

    def dumped(records: Any = torch_private.flight_records) -> Any:
        nonlocal dumps
        dumps += 1
        return records()

    with mock.patch.object(torch_private, "flight_records", dumped):
        end = time.monotonic() + seconds
        while rank.rank == 1 and time.monotonic() < end:
            torch.ones(400, 400) @ torch.ones(400, 400)
        dist.barrier()
        return dumps


def fingerprints(rank: Rank) -> tuple[bool, bool]:
    """Whether two glances are alike with nothing between them, and with a collective, on a system
    that tells nothing of threads."""
    recorder = Recorder()
    with (
        mock.patch.object(samples, "_counters", lambda skip: ({}, {})),
        mock.patch.object(sys, "_current_frames", dict),
    ):
        first, second = (samples.take_glance(recorder).fingerprint for _ in range(2))
        dist.barrier()
        third = samples.take_glance(recorder).fingerprint
    return first == second, second == third


def test_ranks_that_move_are_not_asked_what_they_have_done(launcher: Launcher) -> None:
    """Their recorders are read in milliseconds, twice a second, of which they would lose each."""
    assert launcher.world(3).run(dumps_while_rank_1_computes, 1.8) == [0, 0, 0]


def test_a_collective_is_a_move(launcher: Launcher) -> None:
    assert launcher.world(2).run(fingerprints) == [(True, False)] * 2


def glances(**fingerprints: str) -> Mapping[int, Glance]:
    return {int(name[1:]): Glance((value,), {}) for name, value in fingerprints.items()}


def test_only_ranks_that_have_not_finished_have_to_stand_still() -> None:
    first = glances(r0="a", r1="b", r2="c")
    assert unmoved(first, glances(r0="a", r1="b", r2="c"), frozenset())
    assert not unmoved(first, glances(r0="a", r1="x", r2="c"), frozenset())
    assert unmoved(first, glances(r0="a", r1="x", r2="c"), frozenset({1}))
    assert not unmoved({}, glances(r0="a"), frozenset()), "nobody has glanced before"
    assert not unmoved(first, first, frozenset({0, 1, 2})), "nobody is left to stand still"
