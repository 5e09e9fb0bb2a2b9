"""Two nodes on loopback, started by two torchruns or as two tasks of SLURM's."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.launchers_torchrun.starting import (
    HERE,
    Said,
    free_port,
    left_behind,
    run_all,
    slurm_task,
    torchrun,
)


def two_torchruns(test: str) -> list[Said]:
    port = free_port()
    return run_all(
        *(
            (
                torchrun(
                    "--nnodes=2",
                    f"--node-rank={node}",
                    "--nproc-per-node=1",
                    "--master-addr=127.0.0.1",
                    f"--master-port={port}",
                    pytest=[f"{HERE}/nodes.py", "-k", test],
                ),
                {},
            )
            for node in range(2)
        )
    )


def two_tasks(test: str, **environment: str) -> list[Said]:
    port = free_port()
    return run_all(
        *(
            (
                slurm_task(f"{HERE}/nodes.py", "-k", test),
                {
                    "SLURM_PROCID": str(task),
                    "SLURM_NTASKS": "2",
                    "SLURM_LOCALID": "0",
                    "SLURM_NODEID": str(task),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    **environment,
                },
            )
            for task in range(2)
        )
    )


@pytest.mark.parametrize("start", [two_torchruns, two_tasks])
def test_a_world_over_both_nodes_and_one_report(start: type) -> None:
    first, second = start("alone_on_its_node")
    assert (first.status, second.status) == (0, 0), first.text + second.text
    assert "1 passed" in first.text
    assert "test session starts" not in second.text and "cplife" not in second.text


def test_both_nodes_end_with_rank_0s_status() -> None:
    """Otherwise the second torchrun would report success."""
    first, second = two_torchruns("that_fails")
    assert first.status == second.status == 1, first.text + second.text
    assert "AssertionError: as planned" in first.text
    assert "test session starts" not in second.text


def test_a_rank_killed_on_the_other_node_ends_the_run_and_is_named() -> None:
    first, second = two_torchruns("the_other_rank_is_killed")
    assert first.status != 0 and second.status != 0
    assert re.search(r"RunEnded: rank 1 on \S+ \(process \d+\) has died", first.text), first.text


def test_a_rank_that_dies_after_its_last_call_fails_the_run_all_the_same() -> None:
    first, second = two_tasks("killed_when_all_is_done")
    assert first.status == 1 and second.status == -9
    assert re.search(r"cplife: rank 1 on \S+ \(process \d+\) has died", first.text), first.text


def test_when_rank_0_is_killed_the_other_node_says_so_and_nothing_is_left(tmp_path: Path) -> None:
    first, second = two_tasks("rank_0_is_killed", TMPDIR=str(tmp_path))
    assert first.status == -9
    assert second.status == 1
    assert re.search(r"cplife: rank 1 on \S+ ends: rank 0 has gone", second.text), second.text
    # Rank 0's own agent and the ranks of both end by themselves, soon.
    end = time.monotonic() + 60
    while (left := left_behind(tmp_path)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left
