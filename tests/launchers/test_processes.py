"""Worlds of forked ranks while all goes well: groups, meshes, lanes, serial and bare worlds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pytest_cplife.launchers import Launcher, make_launcher
from pytest_cplife.mesh import MeshSpec
from tests.launchers import bodies

SPEC = MeshSpec.parse("dp=2,cp=2")


def test_results_come_in_rank_order_from_a_live_gloo_group(launcher: Launcher) -> None:
    world = launcher.world(3)
    seen = world.run(bodies.who)
    assert [rank for _, rank, *_ in seen] == [0, 1, 2]
    assert [rest for _, _, *rest in seen] == [[3, False, True]] * 3
    assert world.run(bodies.backend) == ["gloo"] * 3
    assert world.run(bodies.total, 1.0) == [6.0] * 3


def test_ranks_live_across_calls_and_are_not_the_parent(launcher: Launcher) -> None:
    first = [pid for pid, *_ in launcher.world(2).run(bodies.who)]
    again = [pid for pid, *_ in launcher.world(2).run(bodies.who)]
    assert first == again
    assert os.getpid() not in first and len(set(first)) == 2


def test_lanes_share_no_process(launcher: Launcher) -> None:
    one = {pid for pid, *_ in launcher.world(2, "one").run(bodies.who)}
    two = {pid for pid, *_ in launcher.world(2, "two").run(bodies.who)}
    assert not one & two


def test_a_mesh_is_made_once_per_world(launcher: Launcher) -> None:
    world = launcher.world(4)
    first = world.run(bodies.matmul, SPEC)
    assert world.run(bodies.matmul, SPEC) == first
    assert {value for _, value in first} == {6 * 7 * 5.0 + 6 * 5 * 7.0}
    assert world.notes == ()


def test_a_mesh_that_a_trainer_builds_anew_works_at_every_call(launcher: Launcher) -> None:
    """Without care DTensor would answer with the first call's mesh, whose groups are gone."""
    world = launcher.world(4)
    world.run(bodies.matmul, SPEC)
    for _ in range(3):
        assert world.run(bodies.own_mesh, SPEC.names, SPEC.shape) == [180.0] * 4
        assert "rank 0: 2 process group(s) had been left alive" in world.notes
    assert world.run(bodies.matmul, SPEC)


def test_a_flattened_mesh_keeps_its_group_with_the_mesh(launcher: Launcher) -> None:
    world = launcher.world(4)
    assert world.run(bodies.flattened, MeshSpec.parse("a=2,b=1,c=2")) == [30.0] * 4
    assert world.run(bodies.flattened, MeshSpec.parse("a=2,b=1,c=2")) == [30.0] * 4


def test_a_group_that_only_its_members_make_works_at_every_call(launcher: Launcher) -> None:
    """torch names it after its members: the last call's addresses are in the store by that name."""
    world = launcher.world(2)
    for _ in range(3):
        assert world.run(bodies.own_pair) == [3.0, 3.0]
        assert world.notes == ()


def test_what_a_call_leaves_in_the_store_is_not_there_in_the_next(launcher: Launcher) -> None:
    world = launcher.world(2)
    for _ in range(2):
        assert sorted(world.run(bodies.set_in_store, "key")) == [1, 2]


def test_a_mesh_of_another_size_is_refused_with_both_sizes(launcher: Launcher) -> None:
    with pytest.raises(RuntimeError, match="'dp=2,cp=2' needs 4 ranks; this world has 2"):
        launcher.world(2).run(bodies.ask_for_mesh, SPEC)


def test_rank_variables_are_those_of_torchrun(launcher: Launcher) -> None:
    for rank, seen in enumerate(launcher.world(2).run(bodies.variables)):
        port = seen.pop("MASTER_PORT")
        assert port is not None and int(port) > 0
        assert seen == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
        }


def test_a_serial_world_has_no_group_no_variables_and_no_mesh(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")
    world = launcher.serial_world()
    ((pid, *rest),) = world.run(bodies.who)
    assert rest == [0, 1, True, False] and pid != os.getpid()
    assert world.run(bodies.variables) == [dict.fromkeys(bodies.VARIABLES)]
    with pytest.raises(RuntimeError, match="a serial world has no mesh 'dp=1'"):
        world.run(bodies.ask_for_mesh, MeshSpec.parse("dp=1"))


def test_a_bare_world_can_join_by_its_environment_in_fresh_ranks_each_time(
    launcher: Launcher,
) -> None:
    world = launcher.world(2, bare=True)
    first = world.run(bodies.join_by_environment)
    again = world.run(bodies.join_by_environment)
    assert [value for _, value in first + again] == [3.0] * 4
    assert not {pid for pid, _ in first} & {pid for pid, _ in again}


def test_a_call_that_destroys_the_world_gets_a_fresh_one_afterwards(launcher: Launcher) -> None:
    world = launcher.world(2, "destroyed")
    world.run(bodies.destroy_world)
    assert "rank 1: the world's process group had been destroyed" in world.notes
    assert world.run(bodies.total, 0.0) == [1.0, 1.0]


def test_ranks_see_the_parents_folder_and_environment_of_the_moment(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = launcher.world(2)
    world.run(bodies.who)
    monkeypatch.setenv("CPLIFE_PROBE", "later")
    monkeypatch.chdir(tmp_path)
    assert world.run(bodies.environment, "CPLIFE_PROBE") == ["later"] * 2
    assert world.run(bodies.folder) == [str(tmp_path)] * 2
    monkeypatch.delenv("CPLIFE_PROBE")
    assert world.run(bodies.environment, "CPLIFE_PROBE") == [None] * 2


def test_large_values_travel_both_ways(launcher: Launcher) -> None:
    value = torch.arange(2_000_000)
    for answer in launcher.world(2).run(bodies.echo, value):
        assert torch.equal(answer, value)


def test_the_parent_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    environment, state = dict(os.environ), torch.get_rng_state()
    made = make_launcher("processes", timeout=60)
    made.world(2).run(bodies.who)
    made.close()
    assert dict(os.environ) == environment
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.distributed.is_initialized()


def test_closing_ends_every_rank_and_removes_its_files(tmp_path: Path) -> None:
    made = make_launcher("processes", timeout=60)
    pids = [pid for pid, *_ in made.world(2).run(bodies.who)]
    ((folder,), _) = made.world(2).run(bodies.private_folder)
    assert folder.exists()
    made.close()
    made.close()
    assert not folder.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("name", ["mpi", "", "Processes"])
def test_an_unknown_launcher_names_the_accepted_ones(name: str) -> None:
    with pytest.raises(ValueError, match="accepted is 'processes'"):
        make_launcher(name)


def test_a_parent_with_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="has initialised CUDA"):
        make_launcher("processes")


def test_a_function_that_cannot_travel_is_named_before_any_rank_is_asked(
    launcher: Launcher,
) -> None:
    with pytest.raises(TypeError, match="<lambda> and its arguments cannot be sent"):
        launcher.world(2).run(lambda rank: None)
