"""One test per way in which a rank can spoil a call: what is said, how soon, what comes next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.launchers import Launcher
from pytest_cplife.launchers.base import RankFailure, WorldFailure
from tests.launchers import bodies, faulty

# What must not need the deadline is given one that no test waits for.
FAR = 60.0
NEAR = 3.0
WAITING = "waits in gloo:all_reduce #"


def fail(
    launcher: Launcher, fn: Callable[..., Any], *args: Any, size: int = 3, timeout: float = FAR
) -> WorldFailure:
    """The failure of a call on a world in use, of which nothing is left and which works again."""
    world = launcher.world(size, "faults")
    pids = [pid for pid, *_ in world.run(bodies.who)]
    with pytest.raises(WorldFailure) as caught:
        world.run(fn, *args, timeout=timeout)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert world.run(bodies.total, 0.0) == [size * (size - 1) / 2] * size
    if timeout == FAR:
        assert caught.value.seconds < FAR / 4, "the verdict has waited for the deadline"
    return caught.value


def others(failure: WorldFailure) -> dict[int, RankFailure]:
    assert all(other.secondary for other in failure.failures[1:])
    assert not failure.primary.secondary
    return {other.rank: other for other in failure.failures[1:]}


def test_a_rank_that_raises_is_the_headline_with_its_traceback_and_output(
    launcher: Launcher,
) -> None:
    failure = fail(launcher, faulty.raises)
    first = failure.primary
    assert first.headline() == "rank 1 raised: Unpicklable: the planted fault"
    assert 'raise Unpicklable("the planted fault")' in first.traceback
    assert "pytest_cplife" not in first.traceback, "the launcher's own frames are noise"
    assert first.output == "just before the fault\n"
    rest = others(failure)
    assert set(rest) == {0, 2}
    assert all(WAITING in other.message for other in rest.values())


@pytest.mark.parametrize("status", [0, 3])
def test_sys_exit_is_a_failure_whatever_its_status(launcher: Launcher, status: int) -> None:
    failure = fail(launcher, faulty.exits, status)
    assert failure.primary.rank == 1 and failure.primary.kind == "exited"
    assert f"sys.exit({status}) during the call" in failure.primary.message
    assert all(WAITING in other.message for other in others(failure).values())


def test_a_process_that_leaves_with_status_0_is_a_failure(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.leaves)
    assert failure.primary.rank == 1 and failure.primary.kind == "exited"
    assert "exited with status 0 in the middle of the call" in failure.primary.message
    others(failure)


def test_a_rank_killed_inside_a_collective_is_named_with_the_signal(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.killed)
    assert failure.primary.rank == 1 and failure.primary.kind == "killed"
    assert "killed by SIGKILL" in failure.primary.message
    assert "outside any collective" in others(failure)[0].message


def test_a_segfault_inside_a_collective_shows_its_stack(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.segfaults)
    assert failure.primary.rank == 1 and failure.primary.kind == "killed"
    assert "SIGSEGV" in failure.primary.message
    assert "string_at" in failure.primary.output


def test_a_rank_that_sleeps_is_named_at_the_deadline_with_its_stack(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.sleeps, timeout=NEAR)
    assert NEAR <= failure.seconds < 2 * NEAR
    first = failure.primary
    assert first.rank == 1 and first.kind == "hung"
    assert "rank 1 is outside any collective" in first.message
    assert "while ranks 0, 2 wait in gloo:all_reduce #" in first.message
    assert f"the deadline of {NEAR:g} s" in first.message
    assert "time.sleep(600)" in first.traceback
    assert all(WAITING in other.message for other in others(failure).values())


def test_a_rank_that_cannot_answer_is_named_with_its_stack(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.spins_without_letting_go, timeout=NEAR)
    assert failure.seconds < 3 * NEAR
    assert failure.primary.rank == 1
    assert "did not answer" in failure.primary.message
    assert "in spins_without_letting_go" in failure.primary.output


def test_a_rank_that_returns_too_early_is_proved_to_be_missing(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.returns_early)
    first = failure.primary
    assert first.rank == 1 and first.type_name == "Deadlock"
    assert "rank 1 has returned without entering it" in first.message
    assert "ranks 0, 2 wait in gloo:all_reduce #" in first.message
    assert set(others(failure)) == {0, 2}


def test_another_collective_than_its_peers(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.another_collective)
    first = failure.primary
    assert first.rank == 1 and first.type_name == "Deadlock"
    assert "rank 1 entered gloo:broadcast #" in first.message
    assert "ranks 0, 2 entered gloo:all_gather #" in first.message
    assert "another_collective" in first.traceback
    assert all("gloo:all_gather #" in other.message for other in others(failure).values())


@pytest.mark.parametrize("size", [2, 3])
def test_another_shape_is_named_whether_gloo_hangs_or_returns_garbage(
    launcher: Launcher, size: int
) -> None:
    failure = fail(launcher, faulty.another_shape, size=size)
    text = str(failure)
    assert "[5]" in text and "[4]" in text and "all" in text.lower()
    if size == 3:
        assert failure.primary.rank == 1
        assert "rank 1 entered gloo:all_reduce" in failure.primary.message


def test_a_mismatch_that_gloo_does_not_notice_fails_all_the_same(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.same_bytes_other_dtype)
    first = failure.primary
    assert first.rank == 1 and first.type_name == "Mismatch"
    assert "rank 1 entered gloo:broadcast #" in first.message
    assert "int[4], but ranks 0, 2 entered gloo:broadcast #" in first.message
    assert "on group '0' [0, 1, 2]" in first.message


@pytest.mark.parametrize("size", [2, 3])
def test_another_dtype_is_named_though_gloo_aborts_the_process(
    launcher: Launcher, size: int
) -> None:
    text = str(fail(launcher, faulty.another_dtype, size=size)).lower()
    assert "double" in text and "float" in text
    assert "sigabrt" in text


def test_two_groups_in_opposite_order(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.opposite_order)
    first = failure.primary
    assert first.type_name == "Deadlock"
    assert {f.rank for f in failure.failures} == {0, 1}
    mine, theirs = "on group '1' [0, 1]", "on group '2' [0, 1]"
    assert f"rank 0 {WAITING}1 float[4] {mine}, while rank 1 waits in" in first.message
    assert f"rank 1 {WAITING}1 float[4] {theirs}, while rank 0 waits in" in first.message


def test_a_group_that_one_member_does_not_make(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.group_without_me)
    assert failure.primary.type_name == "Deadlock"
    assert "ranks 1, 2 have returned" in failure.primary.message
    assert "dist.new_group([0, 1])" in failure.primary.message


def test_a_message_that_nobody_sends(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.never_sends)
    assert failure.primary.rank == 0 and failure.primary.type_name == "Deadlock"
    assert "dist.recv(torch.ones(4), 1)" in failure.primary.message


def test_a_collective_left_outstanding_fails_the_call_that_left_it(launcher: Launcher) -> None:
    failure = fail(launcher, faulty.outstanding)
    assert failure.primary.rank == 1
    assert failure.primary.type_name == "OutstandingCollective"
    assert "gloo:all_reduce #" in failure.primary.message


def test_a_collective_that_completes_by_itself_is_no_failure(launcher: Launcher) -> None:
    world = launcher.world(3, "faults")
    world.run(faulty.unwaited)
    assert world.run(bodies.total, 0.0) == [3.0] * 3


def test_a_collective_that_waits_for_slower_ranks_is_no_failure_either(launcher: Launcher) -> None:
    world = launcher.world(3, "faults")
    world.run(faulty.unwaited_by_the_first, 2.5)
    assert "rank 0: a collective was not waited for" in world.notes
    assert world.run(bodies.total, 0.0) == [3.0] * 3


def test_a_result_that_cannot_be_sent(launcher: Launcher) -> None:
    failure = fail(launcher, bodies.give_lock)
    assert failure.primary.kind == "unserialisable"
    assert "the result, a lock, cannot be sent" in failure.primary.message


@pytest.mark.parametrize("act", ["sleep", "compute", "compute inside torch", "sleep beside"])
def test_slow_work_is_not_taken_for_a_deadlock(launcher: Launcher, act: str) -> None:
    world = launcher.world(3, "faults")
    assert world.run(faulty.slow, act, 1.8) == [3.0] * 3


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("group", "process group(s) had been left alive"),
        ("dtype", "default dtype had been changed from torch.float32 to torch.float64"),
        ("grad", "grad mode had been changed from True to False"),
        ("environment", "environment variable CPLIFE_LEAK had been changed"),
        ("environment", "environment variable RANK had been changed"),
        ("random", None),
        ("deterministic", "deterministic algorithms had been changed"),
        ("threads", "number of threads had been changed from 1 to 2"),
        ("path", "sys.path had been changed"),
        ("folder", "working directory had been changed"),
        ("warnings", "warnings filters had been changed"),
    ],
)
def test_what_a_call_leaves_changed_is_put_back_and_told(
    launcher: Launcher, kind: str, told: str | None
) -> None:
    world = launcher.world(2, "leaks")
    before = world.run(faulty.state)
    world.run(faulty.leaks, kind)
    notes = world.notes
    assert world.run(faulty.state) == before
    if told is None:
        assert notes == ()
    else:
        for rank in (0, 1):
            assert any(n.startswith(f"rank {rank}: ") and told in n for n in notes)


def test_a_leaked_group_lives_until_every_rank_is_back(launcher: Launcher) -> None:
    """A rank that destroyed it earlier would close connections that others are just making."""
    world = launcher.world(2, "leaks")
    _, (first, second) = world.run(faulty.leaves_a_group_to_the_others)
    assert first == second > 1
    assert "rank 0: 1 process group(s) had been left alive" in world.notes
    _, (first, second) = world.run(faulty.leaves_a_group_to_the_others)
    assert first == second, "that of the last call is gone"


def test_what_a_rank_has_started_ends_with_it(launcher: Launcher, tmp_path: Path) -> None:
    fail(launcher, faulty.starts_a_child_and_hangs, tmp_path, size=2, timeout=NEAR)
    for rank in range(2):
        for pid in map(int, (tmp_path / str(rank)).read_text().split()):
            assert gone(pid)


def test_ranks_end_when_their_parent_is_killed_and_leave_no_folder(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = (
        "from pathlib import Path\n"
        "from pytest_cplife.launchers import make_launcher\n"
        "from tests.launchers import bodies, faulty\n"
        "launcher = make_launcher('processes', timeout=600)\n"
        "launcher.world(2, 'idle').run(bodies.private_folder)\n"
        "world = launcher.world(2)\n"
        f"world.run(faulty.says_its_pid_and_waits, Path({str(tmp_path)!r}))\n"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        files = [tmp_path / "0", tmp_path / "1"]
        wait_for(lambda: all(f.exists() and f.read_text() for f in files))
        assert len(list(temporary.glob("cplife-*"))) == 2
        parent.send_signal(signal.SIGKILL)
    finally:
        parent.kill()
        parent.wait(30)
    for file in files:
        pid = int(file.read_text())
        wait_for(lambda pid=pid: gone(pid))  # type: ignore[misc]
    wait_for(lambda: not list(temporary.glob("cplife-*")))


def test_a_parent_that_forgets_to_close_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "from pytest_cplife.launchers import make_launcher\n"
        "from tests.launchers import bodies\n"
        "world = make_launcher('processes', timeout=60).world(2)\n"
        "((folder,), _) = world.run(bodies.private_folder)\n"
        "print(folder, *(pid for pid, *_ in world.run(bodies.who)))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    folder, *pids = said.stdout.split()
    assert not Path(folder).exists()
    assert len(pids) == 2
    for pid in pids:
        wait_for(lambda pid=pid: gone(int(pid)))  # type: ignore[misc]


def gone(pid: int) -> bool:
    """Whether no such process runs; a zombie is as good as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
