"""Sharded models train to the same bytes in threads as in forked processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_cplife.launchers.base import Launcher
from tests.launchers_threads.programs import PROGRAMS, Program


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_bytes_as_in_forked_ranks(
    program: Program, threads: Launcher, processes: Launcher, tmp_path: Path
) -> None:
    theirs = processes.world(4).run(program, tmp_path / "processes")
    # Twice: the second time on warm caches, which must not hold another rank's answers.
    for name in ("cold", "warm"):
        ours = threads.world(4).run(program, tmp_path / name)
        for rank, (mine, reference) in enumerate(zip(ours, theirs, strict=True)):
            assert len(mine) == len(reference) > 0
            for index, (a, b) in enumerate(zip(mine, reference, strict=True)):
                assert a.shape == b.shape and torch.equal(a, b), f"{name}: rank {rank}, {index}"
