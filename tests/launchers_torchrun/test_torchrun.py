"""One node: rank 0 is pytest, the others serve it, and there is one report and one exit status."""

from __future__ import annotations

import re
import socket

from tests.launchers_torchrun.starting import HERE, Said, free_port, run, slurm_task, torchrun

REFERENCE = "--cplife-adapter=pytest_cplife.reference_impl:Adapter"
MESHES = ("--cplife-mesh=dp=2", "--cplife-mesh=dp=2,cp=2")
ALONE = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}


def reports(said: Said) -> int:
    return said.text.count("test session starts")


def test_four_ranks_do_all_that_a_launcher_has_to() -> None:
    said = run(torchrun("--nproc-per-node=4", pytest=[f"{HERE}/inside.py"]))
    assert said.status == 0, said.text
    assert reports(said) == 1
    assert re.search(r"^=+ 13 passed in ", said.text, re.MULTILINE), said.text
    assert "cplife: rank" not in said.text, "the others are silent"


def test_the_suite_on_two_ranks_and_what_is_too_large_for_them() -> None:
    said = run(torchrun("--nproc-per-node=2", pytest=[REFERENCE, *MESHES, "-k", "PLACE-01"]))
    assert said.status == 0, said.text
    assert reports(said) == 1
    assert "1 passed, 1 skipped" in said.text
    assert "dp2-cp2 needs 4 ranks, torchrun has started 2" in said.text


def test_a_failure_is_rank_0s_alone() -> None:
    said = run(torchrun("--nproc-per-node=2", pytest=[f"{HERE}/nodes.py", "-k", "test_that_fails"]))
    assert said.status == 1, said.text
    assert reports(said) == 1
    assert "AssertionError: as planned" in said.text
    assert re.findall(r"rank +: (\d+)", said.text) == ["0"], "torchrun blames another rank"


def test_a_rank_that_is_killed_ends_the_run_and_is_named() -> None:
    said = run(
        torchrun("--nproc-per-node=2", pytest=[f"{HERE}/nodes.py", "-k", "while_rank_0_is_busy"])
    )
    assert said.status != 0
    assert re.search(r"RunEnded: rank 1 on \S+ \(process \d+\) has died", said.text), said.text
    assert re.search(r"deselected in ([0-4]?\d)\.", said.text), "rank 0 has slept on"


def test_no_ranks_have_been_started() -> None:
    said = run(slurm_task(REFERENCE))
    assert said.status == 4
    assert "--cplife-launcher=torchrun needs ranks that torchrun or SLURM has started" in said.text


def test_half_of_the_variables() -> None:
    said = run(slurm_task(REFERENCE), SLURM_PROCID="0")
    assert said.status == 4
    assert "--cplife-launcher=torchrun: the variable SLURM_NTASKS is not set" in said.text


def test_workers_of_xdist_are_refused() -> None:
    said = run(slurm_task(REFERENCE, "-n", "2"), **ALONE, MASTER_PORT=str(free_port()))
    assert said.status == 4
    assert "leave out -n" in said.text


def test_ranks_that_never_come_are_named_in_time() -> None:
    said = run(
        slurm_task("--cplife-timeout=1", f"{HERE}/nodes.py", "-k", "alone_on_its_node"),
        SLURM_PROCID="0",
        SLURM_NTASKS="3",
        MASTER_PORT=str(free_port()),  # that of no job is the same for all who run these tests
    )
    assert said.status == 2, said.text
    assert "SLURM was to start 3 ranks, but ranks 1, 2 did not come within 1 s" in said.text


def test_rank_0_that_never_comes_is_told_by_the_others() -> None:
    said = run(
        slurm_task("--cplife-timeout=1", REFERENCE),
        SLURM_PROCID="1",
        SLURM_NTASKS="2",
        MASTER_PORT=str(free_port()),
    )
    assert said.status == 1
    assert "cplife: rank 1 ends: rank 0 was not reached at 127.0.0.1:" in said.text
    assert reports(said) == 0


def test_a_meeting_place_that_is_taken_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = run(slurm_task(REFERENCE), **ALONE, MASTER_PORT=port)
    assert said.status == 4, said.text
    assert f"--cplife-launcher=torchrun: rank 0 cannot be met at 127.0.0.1:{port} (" in said.text
    assert "Traceback" not in said.text and "MASTER_PORT choose another place" in said.text
