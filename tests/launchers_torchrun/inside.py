"""What `test_torchrun.py` runs on four ranks that torchrun has started; not collected otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cplife.launchers import Launcher, make_launcher
from pytest_cplife.launchers.base import RunEnded, WorldFailure
from pytest_cplife.mesh import MeshSpec
from tests.launchers import bodies, faulty

SPEC = MeshSpec.parse("dp=2,cp=2")
OTHERS = ("TORCHELASTIC_USE_AGENT_STORE", "ROLE_RANK", "GROUP_WORLD_SIZE")


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    made = make_launcher("torchrun", timeout=60)
    yield made
    made.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_world_of_any_size_and_what_its_ranks_read(launcher: Launcher) -> None:
    for size in (4, 3, 1):
        world = launcher.world(size)
        seen = world.run(bodies.who)
        assert [rank for _, rank, *_ in seen] == list(range(size))
        assert len({pid for pid, *_ in seen} | {os.getpid()}) == size + 1
        assert world.run(bodies.total, 1.0) == [size * (size + 1) / 2] * size
        assert world.run(bodies.backend) == ["gloo"] * size
        for rank, found in enumerate(world.run(bodies.variables)):
            assert int(found.pop("MASTER_PORT") or 0) > 0
            assert found.pop("MASTER_ADDR") == os.environ["MASTER_ADDR"]
            assert found == {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "GROUP_RANK": "0",
            }
        for name in OTHERS:
            assert name in os.environ, "or this test shows nothing"
            assert world.run(bodies.environment, name) == [None] * size


def test_a_mesh_lives_as_long_as_its_world(launcher: Launcher) -> None:
    first = launcher.world(4).run(bodies.matmul, SPEC)
    assert launcher.world(4).run(bodies.matmul, SPEC) == first


def test_a_larger_world_than_the_given_one(launcher: Launcher) -> None:
    with pytest.raises(ValueError, match="a world of 5 ranks is not to be had from the 4 given"):
        launcher.world(5)


def test_a_serial_world(launcher: Launcher) -> None:
    world = launcher.serial_world()
    ((_, *rest),) = world.run(bodies.who)
    assert rest == [0, 1, True, False]
    assert world.run(bodies.variables) == [dict.fromkeys(bodies.VARIABLES)]


def test_a_bare_world_joins_by_its_environment_in_fresh_processes(launcher: Launcher) -> None:
    world = launcher.world(2, bare=True)
    first, again = (world.run(bodies.join_by_environment) for _ in range(2))
    assert [value for _, value in first + again] == [3.0] * 4
    assert not {pid for pid, _ in first} & {pid for pid, _ in again}


def test_lanes_share_no_process(launcher: Launcher) -> None:
    one, two = ({p for p, *_ in launcher.world(2, lane).run(bodies.who)} for lane in ("a", "b"))
    assert not one & two


def test_ranks_see_what_changes_in_rank_0s_environment(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = launcher.world(2)
    monkeypatch.setenv("CPLIFE_PROBE", "later")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    assert world.run(bodies.environment, "CPLIFE_PROBE") == ["later"] * 2
    assert world.run(bodies.environment, "HOME") == [None] * 2
    assert world.run(bodies.folder) == [str(tmp_path)] * 2
    monkeypatch.undo()
    assert world.run(bodies.environment, "CPLIFE_PROBE") == [None] * 2
    assert world.run(bodies.environment, "HOME") == [os.environ["HOME"]] * 2


@pytest.mark.parametrize(
    ("body", "size", "told"),
    [
        (faulty.raises, 3, ("rank 1 raised: Unpicklable: the planted fault", "just before the")),
        (faulty.killed, 3, ("rank 1 killed: RankDied: the process killed by SIGKILL",)),
        (faulty.another_collective, 3, ("Deadlock: rank 1 entered gloo:broadcast #",)),
        (faulty.another_dtype, 2, ("SIGABRT", "run again under TORCH_DISTRIBUTED_DEBUG=DETAIL")),
    ],
)
def test_a_fault_is_told_as_of_local_processes_and_the_next_call_works(
    launcher: Launcher, body: object, size: int, told: tuple[str, ...]
) -> None:
    world = launcher.world(size, "faults")
    pids = [pid for pid, *_ in world.run(bodies.who)]
    with pytest.raises(WorldFailure) as caught:
        world.run(body)  # type: ignore[arg-type]
    for part in told:
        assert part in str(caught.value)
    assert caught.value.seconds < 30, "the verdict has waited for the deadline"
    assert all(gone(pid) for pid in pids)
    assert world.run(bodies.total, 0.0) == [size * (size - 1) / 2] * size


def test_a_folder_that_not_every_rank_sees_ends_the_run(launcher: Launcher, tmp_path: Path) -> None:
    launcher.check_folder(tmp_path)
    with pytest.raises(RunEnded, match=r"is not to be seen by rank 0 on .*, rank 3 on .*TMPDIR"):
        launcher.check_folder(tmp_path / "absent")


def test_closing_ends_every_process() -> None:
    made = make_launcher("torchrun", timeout=60)
    pids = [pid for pid, *_ in made.world(4).run(bodies.who)]
    made.close()
    assert all(gone(pid) for pid in pids)
