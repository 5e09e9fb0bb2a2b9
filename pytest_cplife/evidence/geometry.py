"""Which part of a tensor a rank holds: an oracle that shares no code with torch's sharding.

The definitions: ``Shard`` cuts a dimension into pieces of ceil(size / count), the last ones
shorter or empty, and mesh dimensions apply from left to right, except that a strided shard
applies after those to its right which it names by its split factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_cplife.evidence.records import Placement

Indices = NDArray[np.int64]


def piece(indices: Indices, count: int, position: int) -> Indices:
    """Piece `position` of `indices` cut into `count` pieces of equal size, rounded up."""
    size = -(-len(indices) // count)
    return indices[position * size : (position + 1) * size]


def _order(placements: Sequence[Placement], mesh_shape: Sequence[int], dim: int) -> list[int]:
    """Mesh dimensions that cut tensor dimension `dim`, in the order in which they do."""
    order: list[int] = []
    for i, placement in reversed(list(enumerate(placements))):
        if placement.kind not in ("shard", "strided") or placement.dim != dim:
            continue
        factor = placement.split_factor if placement.kind == "strided" else 1
        # The cuts that come first are those of the innermost strided shards, not the next ones to
        # the right on the mesh.
        position, reach = 0, 1
        while reach < factor and position < len(order):
            reach *= mesh_shape[order[position]]
            position += 1
        if reach != factor:
            raise ValueError(
                f"a shard with split factor {factor} on mesh dimension {i} of {tuple(mesh_shape)}"
                " has no shards of that count to its right"
            )
        order.insert(position, i)
    return order


def held(
    size: int,
    placements: Sequence[Placement],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    dim: int,
) -> Indices:
    """Global indices along tensor dimension `dim` (of `size`) that a rank holds, in order."""
    indices: Indices = np.arange(size, dtype=np.int64)
    for mesh_dim in _order(placements, mesh_shape, dim):
        indices = piece(indices, mesh_shape[mesh_dim], coordinate[mesh_dim])
    return indices


def region(
    shape: Sequence[int],
    placements: Sequence[Placement],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
) -> tuple[Indices, ...]:
    """For each tensor dimension, the global indices that the rank at `coordinate` holds."""
    return tuple(
        held(size, placements, mesh_shape, coordinate, dim) for dim, size in enumerate(shape)
    )
