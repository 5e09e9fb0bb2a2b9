"""Every operation of `torch.distributed` that a trainer may use: bodies with results to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed import P2POp, ReduceOp
from torch.distributed.distributed_c10d import _coalescing_manager

from pytest_cplife.launchers.base import Rank

Results = list[Tensor]


def noise(rank: Rank, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + rank.rank)
    return torch.randn(*shape, generator=generator)


def all_reduce(rank: Rank) -> Results:
    results = []
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            tensor = (noise(rank, 3, 5) * 4).to(dtype)
            dist.all_reduce(tensor, op)
            results.append(tensor)
    return results


def reduce_and_broadcast(rank: Rank) -> Results:
    reduced, sent = noise(rank, 7), noise(rank, 4)
    dist.reduce(reduced, dst=1)
    dist.broadcast(sent, src=2)
    return [reduced if rank.rank == 1 else torch.zeros(0), sent]


def gathers(rank: Rank) -> Results:
    mine, size = noise(rank, 2, 3), rank.world_size
    every = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(every, mine)
    joined = torch.empty(2 * size, 3)
    dist.all_gather_single(joined, mine)
    collected = [torch.empty(2, 3) for _ in range(size)] if rank.rank == 3 else None
    dist.gather(mine, collected, dst=3)
    return [*every, joined, *(collected or ())]


def scatters(rank: Rank) -> Results:
    size = rank.world_size
    own = torch.empty(3)
    dist.scatter(own, list(noise(rank, size, 3)) if rank.rank == 0 else None, src=0)
    listed, joined = torch.empty(3), torch.empty(2, 3)
    dist.reduce_scatter(listed, list(noise(rank, size, 3)))
    dist.reduce_scatter_single(joined, noise(rank, 2 * size, 3))
    return [own, listed, joined]


def all_to_all(rank: Rank) -> Results:
    size, me = rank.world_size, rank.rank
    even = torch.empty(size, 2)
    dist.all_to_all_single(even, noise(rank, size, 2))
    sent = [(me + other) % 3 for other in range(size)]
    uneven = torch.empty(sum(sent), 2)
    dist.all_to_all_single(uneven, noise(rank, sum(sent), 2), sent, sent)
    return [even, uneven]


def asynchronous(rank: Rank) -> Results:
    tensors = [noise(rank, 6) + i for i in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    polled = noise(rank, 6)
    work = dist.all_reduce(polled, async_op=True)
    while not work.is_completed():
        pass
    work.wait()
    return [*tensors, polled]


def coalesced(rank: Rank) -> Results:
    reduced = [noise(rank, 4), noise(rank, 2)]
    with _coalescing_manager():
        for tensor in reduced:
            dist.all_reduce(tensor)
    gathered = [torch.empty(4 * rank.world_size), torch.empty(2 * rank.world_size)]
    with _coalescing_manager(async_ops=True) as manager:
        for output, tensor in zip(gathered, reduced, strict=True):
            dist.all_gather_single(output, tensor)
    manager.wait()
    scattered = [torch.empty(4), torch.empty(2)]
    with _coalescing_manager():
        for output, tensor in zip(scattered, gathered, strict=True):
            dist.reduce_scatter_single(output, tensor)
    return [*reduced, *gathered, *scattered]


def messages(rank: Rank) -> Results:
    me, size = rank.rank, rank.world_size
    following, previous = (me + 1) % size, (me - 1) % size
    ring = torch.empty(3)
    for work in dist.batch_isend_irecv(
        [P2POp(dist.isend, noise(rank, 3), following), P2POp(dist.irecv, ring, previous)]
    ):
        work.wait()
    tagged = [torch.empty(2), torch.empty(2)]
    if me == 0:
        works = [dist.isend(noise(rank, 2) * tag, 1, tag=tag) for tag in (7, 8)]
        for work in works:
            work.wait()
    if me == 1:
        # The later message first: tags tell them apart.
        dist.recv(tagged[1], 0, tag=8)
        dist.recv(tagged[0], 0, tag=7)
        ring += tagged[0] @ tagged[1]
    blocking = noise(rank, 4)
    if me % 2 == 0:
        dist.send(blocking, following)
    else:
        dist.recv(blocking, previous)
    return [ring, blocking]


def any_source(rank: Rank) -> Results:
    if rank.rank:
        dist.send(noise(rank, 3), 0)
        return []
    total = {}
    for _ in range(1, rank.world_size):
        tensor = torch.empty(3)
        total[dist.recv(tensor)] = tensor
    return [total[source] for source in sorted(total)]


def objects(rank: Rank) -> Results:
    me, size = rank.rank, rank.world_size
    every: list[Any] = [None] * size
    dist.all_gather_object(every, {"rank": me, "text": "x" * (me + 1)})
    collected: list[Any] | None = [None] * size if me == 2 else None
    dist.gather_object(("from", me), collected, dst=2)
    own: list[Any] = [None]
    dist.scatter_object_list(own, [f"for {r}" for r in range(size)] if me == 1 else None, src=1)
    shared = [me, "first"] if me == 3 else [None, None]
    dist.broadcast_object_list(shared, src=3)
    told: list[Any] = ["told"] if me == 0 else [None]
    if me == 0:
        dist.send_object_list(told, 1)
    if me == 1:
        dist.recv_object_list(told, 0)
    return [torch.tensor([hash_of((every, collected, own, shared, told))])]


def hash_of(value: object) -> int:
    """The same in every process, unlike `hash`."""
    return int.from_bytes(repr(value).encode()[-2000:], "big") % (1 << 60)


def subgroups(rank: Rank) -> Results:
    me = rank.rank
    # Before the others: torch names it after the number of groups that the rank is in.
    local = dist.new_group([me // 2 * 2, me // 2 * 2 + 1], use_local_synchronization=True)
    rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [3, 1, 0])]
    results = []
    for group in rows:
        if dist.get_rank(group) < 0:
            continue
        tensor = noise(rank, 5)
        dist.all_reduce(tensor, group=group)
        ranks = dist.get_process_group_ranks(group)
        results += [tensor, torch.tensor([dist.get_rank(group), *ranks])]
    tensor = noise(rank, 5)
    dist.broadcast(tensor, src=me // 2 * 2 + 1, group=local)
    mine, _ = dist.new_subgroups(2)
    dist.barrier(mine)
    dist.monitored_barrier()
    dist.destroy_process_group(local)
    return [*results, tensor]


def functional_ops(rank: Rank) -> Results:
    group, size = dist.group.WORLD, rank.world_size
    mine = noise(rank, size, 2).requires_grad_()
    reduced = functional.all_reduce(mine.detach(), "sum", group)
    gathered = functional.all_gather_single(mine.detach(), 0, group)
    scattered = functional.reduce_scatter_single(gathered, "sum", 0, group)
    moved = functional.all_to_all_single(mine.detach(), None, None, group)
    sent = functional.broadcast(mine.detach(), 2, group)
    differentiable = functional.all_gather_single_autograd(mine, 0, group)
    (differentiable * differentiable).sum().backward()
    assert mine.grad is not None
    return [t + 0 for t in (reduced, gathered, scattered, moved, sent, mine.grad)]


OPERATIONS: tuple[Callable[[Rank], Results], ...] = (
    all_reduce,
    reduce_and_broadcast,
    gathers,
    scatters,
    all_to_all,
    asynchronous,
    coalesced,
    messages,
    any_source,
    objects,
    subgroups,
    functional_ops,
)
