"""What one rank does for all, whose failure is everybody's."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from pytest_cplife import RankContext


def on_rank_zero(ctx: RankContext, work: Callable[[], None]) -> None:
    """Do `work` on rank 0 while the others wait for its outcome. Collective."""
    on_rank(ctx, 0, work)


def on_rank(ctx: RankContext, rank: int, work: Callable[[], None]) -> None:
    """Do `work` on one rank while the others wait for its outcome. Collective.

    Raises:
        RuntimeError: on every rank, where it failed: otherwise the others would wait in their next
            collective for a rank that has left, or go on as if all were well.
    """
    error: Exception | None = None
    if ctx.rank == rank:
        try:
            work()
        except Exception as caught:
            error = caught
    told = [None if error is None else f"{type(error).__name__}: {error}"]
    if not ctx.serial:
        dist.broadcast_object_list(told, src=rank)
    if told[0] is not None:
        raise RuntimeError(f"rank {rank} has failed: {told[0]}") from error


def in_turn(ctx: RankContext, work: Callable[[], None]) -> None:
    """Do `work` on one rank after the other, and on none after one that failed. Collective."""
    for rank in range(ctx.world_size):
        on_rank(ctx, rank, work)
