"""A full tensor on one rank only; the others send their shard and hold nothing more.

`DTensor.full_tensor` makes it on every rank. In a save that costs each of them a few times the
largest tensor for something that one rank writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Shard


def gather_to(tensor: DTensor, rank: int) -> Tensor | None:
    """The value of `tensor` on the CPU of global rank `rank`, None on the others. Collective."""
    placements, mesh = tensor.placements, tensor.device_mesh
    mine = dist.get_rank() == rank
    # Asked of the mesh, not of this rank's place on it: all ranks must go the same way below.
    on_mesh = bool((mesh.mesh == rank).any())
    if not all(place.is_replicate() or type(place) is Shard for place in placements):
        if not on_mesh:
            raise ValueError(f"rank {rank} is not on the mesh of a tensor that is {placements}")
        full = tensor.full_tensor()  # strided shards and the like: torch knows where they belong
        return full.to("cpu", copy=True) if mine else None
    local = tensor.to_local()
    if on_mesh and all(place.is_replicate() for place in placements):
        return local.to("cpu", copy=True) if mine else None
    whole = torch.empty(tensor.shape, dtype=tensor.dtype) if mine else None
    extents = [range(size) for size in mesh.shape]
    for coordinate in itertools.product(*extents):
        replica = any(
            at and place.is_replicate() for at, place in zip(coordinate, placements, strict=True)
        )
        offsets, sizes = shard_box(tensor.shape, mesh.shape, placements, coordinate)
        if replica or 0 in sizes:
            continue
        holder = int(mesh.mesh[coordinate].item())
        if whole is None:
            if holder == dist.get_rank():
                dist.send(local.contiguous(), rank)
            continue
        part = local
        if holder != rank:
            part = torch.empty(sizes, dtype=tensor.dtype, device=local.device)
            dist.recv(part, holder)
        box = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
        whole[box] = part.to("cpu")
    return whole


def shard_box(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement],
    coordinate: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Offsets and sizes of the shard at one coordinate of the mesh.

    A mesh dimension cuts what the ones before it have left, into pieces of ceil(size / ranks):
    the last ones may be smaller, or empty.
    """
    offsets, sizes = [0] * len(shape), list(shape)
    for ranks, place, at in zip(mesh_shape, placements, coordinate, strict=True):
        if isinstance(place, Shard):
            rows = -(-sizes[place.dim] // ranks)
            start = min(rows * at, sizes[place.dim])
            offsets[place.dim] += start
            sizes[place.dim] = min(rows, sizes[place.dim] - start)
    return offsets, sizes
