"""Every operation gives the same bytes as on forked ranks, which run on bare gloo."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_cplife.launchers.base import Launcher, Rank
from tests.launchers_threads.operations import OPERATIONS, Results


@pytest.mark.parametrize("body", OPERATIONS, ids=lambda body: body.__name__)
def test_the_same_bytes_as_on_forked_ranks(
    body: Callable[[Rank], Results], threads: Launcher, processes: Launcher
) -> None:
    ours = threads.world(4).run(body)
    theirs = processes.world(4).run(body)
    assert sum(len(results) for results in theirs) > 0
    for rank, (mine, reference) in enumerate(zip(ours, theirs, strict=True)):
        assert len(mine) == len(reference), f"rank {rank}"
        for index, (a, b) in enumerate(zip(mine, reference, strict=True)):
            assert a.dtype == b.dtype and torch.equal(a, b), f"rank {rank}, result {index}"
