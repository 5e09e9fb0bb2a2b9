"""One all-gather for many shards, and one reduce-scatter for their gradients.

`DTensor.redistribute` does the same for one parameter at a time; with some thirty small
parameters the latency of as many collectives is nearly all that a step costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather_shards(
    shards: Sequence[Tensor], dims: Sequence[int], sizes: Sequence[int], group: dist.ProcessGroup
) -> tuple[Tensor, ...]:
    """The whole tensors of which this rank has `shards`, cut along `dims` of full `sizes`.

    All shards have one dtype. Differentiable: a shard's gradient is the sum over the group.
    """
    whole: tuple[Tensor, ...] = _Gather.apply(group, tuple(dims), tuple(sizes), *shards)  # type: ignore[no-untyped-call]
    return whole


def _padded(part: Tensor, rows: int) -> Tensor:
    """`part` with zeros below, up to `rows`: ranks send equally much, whatever they hold."""
    missing = rows - part.shape[0]
    return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: dist.ProcessGroup,
        dims: tuple[int, ...],
        sizes: tuple[int, ...],
        *shards: Tensor,
    ) -> tuple[Tensor, ...]:
        ranks = dist.get_world_size(group)
        ctx.set_materialize_grads(False)
        ctx.layout = (group, ranks, dims, sizes)
        ctx.local_rows = [shard.shape[dim] for shard, dim in zip(shards, dims, strict=True)]
        # ceil(size / ranks) rows per rank, as `Shard` cuts; the last ranks may have fewer or none.
        parts = [
            _padded(shard.movedim(dim, 0), -(-size // ranks))
            for shard, dim, size in zip(shards, dims, sizes, strict=True)
        ]
        mine = torch.cat([part.reshape(-1) for part in parts])
        everyone = mine.new_empty(ranks * mine.numel())
        dist.all_gather_single(everyone, mine, group=group)
        columns = torch.split(everyone.view(ranks, -1), [part.numel() for part in parts], dim=1)
        return tuple(
            column.reshape(ranks * part.shape[0], *part.shape[1:])[:size].movedim(0, dim)
            for column, part, size, dim in zip(columns, parts, sizes, dims, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        group, ranks, dims, sizes = ctx.layout
        # A parameter that the forward did not use has no gradient here and gets none: zeros
        # would let the optimizer decay it.
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]
        results: list[Tensor | None] = [None] * len(gradients)
        if used:
            columns, shapes = [], []
            for i in used:
                gradient = gradients[i]
                assert gradient is not None
                rows = -(-sizes[i] // ranks)
                whole = _padded(gradient.movedim(dims[i], 0), ranks * rows)
                columns.append(whole.reshape(ranks, -1))
                shapes.append((rows, *whole.shape[1:]))
            terms = torch.cat(columns, dim=1)
            mine = terms.new_empty(terms.shape[1])
            dist.reduce_scatter_single(mine, terms.reshape(-1), group=group)
            pieces = torch.split(mine, [column.shape[1] for column in columns])
            for i, piece, shape in zip(used, pieces, shapes, strict=True):
                results[i] = piece.view(shape)[: ctx.local_rows[i]].movedim(0, dims[i])
        return (None, None, None, *results)
