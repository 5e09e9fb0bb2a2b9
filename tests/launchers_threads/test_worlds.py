"""Worlds, lanes and what stays between calls."""

from __future__ import annotations

import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_cplife.launchers.base import Launcher, Rank, World, WorldFailure
from pytest_cplife.mesh import MeshSpec
from tests.launchers import bodies

SPEC = MeshSpec.parse("dp=2,cp=2")


def test_a_closure_is_a_body_and_nothing_is_copied(four: World) -> None:
    shared: list[int] = []
    marker = object()

    def body(rank: Rank, given: object) -> object:
        shared.append(rank.rank)
        return given

    assert all(result is marker for result in four.run(body, marker))
    assert shared == [0, 1, 2, 3]


def test_ranks_take_turns_and_the_last_to_arrive_goes_on(four: World) -> None:
    def body(rank: Rank) -> None:
        for step in range(3):
            seen.append((step, rank.rank))
            dist.all_reduce(torch.ones(8))

    seen: list[tuple[int, int]] = []
    four.run(body)
    ranks = [rank for _, rank in sorted(seen, key=lambda entry: entry[0])]
    assert ranks == [0, 1, 2, 3, 3, 0, 1, 2, 2, 3, 0, 1]


def test_the_order_is_always_the_same(four: World) -> None:
    def body(rank: Rank) -> None:
        groups = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
        for step in range(5):
            seen.append((rank.rank, step))
            work = dist.all_reduce(torch.ones(8), async_op=True)
            if (step + rank.rank // 2) % 2:
                dist.barrier(groups[rank.rank // 2])
            while not work.is_completed():
                seen.append((rank.rank, -1))

    orders = []
    for _ in range(5):
        seen: list[tuple[int, int]] = []
        four.run(body)
        orders.append(seen)
    assert all(order == orders[0] for order in orders) and len(orders[0]) > 20


def test_lanes_share_no_thread_and_no_group(threads: Launcher) -> None:
    def body(rank: Rank) -> tuple[int, int]:
        return threading.get_ident(), id(dist.group.WORLD)

    main, other = threads.world(2), threads.world(2, "other")
    assert threads.world(2) is main
    idents = [ident for world in (main, other) for ident, _ in world.run(body)]
    assert len(set(idents)) == 4
    assert main.run(body) == main.run(body)
    assert not {group for _, group in main.run(body)} & {group for _, group in other.run(body)}


def test_the_serial_world(threads: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")

    def body(rank: Rank) -> None:
        assert rank.serial and rank.rank == 0 and rank.world_size == 1
        assert not dist.is_initialized()
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            assert name not in os.environ, name
        with pytest.raises(RuntimeError, match="serial"):
            rank.mesh(MeshSpec.parse("dp=1"))

    threads.serial_world().run(body)
    assert os.environ["RANK"] == "3"


def test_a_bare_world_is_for_trainers_that_make_the_group_themselves(threads: Launcher) -> None:
    def body(rank: Rank) -> tuple[float, str]:
        assert not dist.is_initialized()
        with pytest.raises(RuntimeError, match="no process group"):
            rank.mesh(MeshSpec.parse("dp=2"))
        dist.init_process_group("gloo", init_method="env://")
        tensor = torch.full((1,), float(dist.get_rank() + 1))
        dist.all_reduce(tensor)
        return tensor.item(), dist.get_backend()

    world = threads.world(2, bare=True)
    assert world is not threads.world(2)
    # Every call starts anew; a second init_process_group would be refused otherwise.
    assert world.run(body) == world.run(body) == [(3.0, "gloo")] * 2


def test_a_group_can_be_destroyed_and_made_again(threads: Launcher) -> None:
    def body(rank: Rank) -> float:
        for _ in range(2):
            dist.init_process_group()
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            dist.destroy_process_group()
        return tensor.item()

    assert threads.world(2, bare=True).run(body) == [2.0, 2.0]


def test_calls_do_not_nest(two: World, four: World) -> None:
    with pytest.raises(WorldFailure, match="calls do not nest"):
        two.run(lambda rank: four.run(lambda inner: None))


def test_a_mesh_is_kept_for_the_life_of_the_world(four: World) -> None:
    four.close()

    def body(rank: Rank) -> DeviceMesh:
        with pytest.raises(RuntimeError, match="needs 2 ranks; this world has 4"):
            rank.mesh(MeshSpec.parse("dp=2"))
        return rank.mesh(SPEC)

    first = four.run(body)
    assert all(a is b for a, b in zip(first, four.run(body), strict=True))
    assert four.notes == ()
    # Equal meshes of two ranks would share what torch caches by mesh.
    assert len(set(first)) == 4
    four.close()
    assert not set(first) & set(four.run(body))


def matmul(mesh: DeviceMesh) -> float:
    left = distribute_tensor(torch.arange(15.0).reshape(5, 3), mesh, [Shard(0), Replicate()])
    right = distribute_tensor(torch.ones(3, 7), mesh, [Replicate(), Shard(1)])
    product = left @ right
    assert isinstance(product, DTensor)
    return product.full_tensor().sum().item()


def test_groups_that_a_call_leaves_are_destroyed_and_told(four: World) -> None:
    """The next call builds an equal mesh; nothing cached by the old one may answer for it."""

    def body(rank: Rank) -> float:
        cached = matmul(rank.mesh(SPEC))
        own = matmul(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp")))
        assert cached == own
        return own

    expected = torch.arange(15.0).sum().item() * 7
    for _ in range(3):
        assert four.run(body) == [expected] * 4
        assert "rank 0: 2 process group(s) had been left alive" in four.notes


def test_what_a_call_leaves_in_the_store_is_not_there_in_the_next(two: World) -> None:
    for _ in range(3):
        assert sorted(two.run(bodies.set_in_store, "key")) == [1, 2]
        assert two.run(bodies.own_pair) == [3.0, 3.0]
        assert two.notes == ()


def test_a_flattened_mesh_is_part_of_the_mesh(four: World) -> None:
    def body(rank: Rank) -> float:
        flat = rank.mesh(SPEC)["dp", "cp"]._flatten("all")
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=flat.get_group())
        return tensor.item()

    for _ in range(2):
        assert four.run(body) == [4.0] * 4
        assert four.notes == ()


def test_an_operation_that_nobody_waited_for_is_told(two: World) -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True)

    two.close()
    two.run(body)
    assert two.notes == (
        "outstanding operation: all_reduce #1 (sum, [1] float32) on group 0 of ranks 0, 1, "
        "for rank 1",
    )
    assert two.run(lambda rank: dist.barrier()) == [None, None]


def test_a_background_thread_with_collectives_is_refused(two: World) -> None:
    def body(rank: Rank) -> None:
        def background() -> None:
            try:
                dist.barrier()
            except RuntimeError as error:
                texts.append(str(error))

        if rank.rank == 0:
            thread = threading.Thread(target=lambda: (go.wait(), background()))
            thread.start()
            dist.all_reduce(torch.ones(1))
            thread.join()
        else:
            go.set()
            while not texts:
                pass
            dist.all_reduce(torch.ones(1))

    texts: list[str] = []
    go = threading.Event()
    two.run(body)
    assert (
        "a thread of rank 0 communicates while it is rank 1's turn" in texts[0]
        and "needs 'processes'" in texts[0]
    )


def test_a_rank_may_go_on_in_a_thread_of_its_own(two: World) -> None:
    """As where a trainer owns the loop, and is driven from outside of it."""

    def body(rank: Rank) -> float:
        def work() -> None:
            tensors.append(torch.ones(()) + rank.rank)
            mesh = rank.mesh(MeshSpec.parse("dp=2"))
            dist.all_reduce(tensors[0], group=mesh.get_group())

        tensors: list[torch.Tensor] = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return tensors[0].item()

    assert two.run(body) == [3.0, 3.0]
