"""The geometry oracle against definitions that it does not share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cplife.evidence.geometry import held, piece, region
from pytest_cplife.evidence.records import Placement
from tests.evidence.layouts import replicate, shard, strided

QUICK = settings(max_examples=60, deadline=None, database=None)

mesh_shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
shapes = st.lists(st.integers(0, 11), min_size=1, max_size=3).map(tuple)


@st.composite
def layouts(
    draw: st.DrawFn,
) -> tuple[tuple[int, ...], tuple[Placement, ...], tuple[int, ...]]:
    """A shape, a mesh and placements; a shard may be strided over shards to its right."""
    shape, mesh = draw(shapes), draw(mesh_shapes)
    placements: list[Placement] = []
    applied: dict[int, list[int]] = {}  # counts of the cuts of each dimension, the first one first
    for size in reversed(mesh):
        dim = draw(st.integers(-1, len(shape) - 1))
        if dim < 0:
            placements.insert(0, replicate())
            continue
        counts = applied.setdefault(dim, [])
        position = draw(st.integers(0, len(counts)))
        factor = math.prod(counts[:position])
        placements.insert(0, strided(dim, factor) if factor > 1 else shard(dim))
        counts.insert(position, size)
    return shape, tuple(placements), mesh


def _cuts(placement: Placement) -> bool:
    return placement.kind in ("shard", "strided")


def coordinates(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(size) for size in mesh)))


@QUICK
@given(layouts())
def test_the_parts_tile_the_tensor(
    layout: tuple[tuple[int, ...], tuple[Placement, ...], tuple[int, ...]],
) -> None:
    """Each element is held as often as there are replicas, and never by two shards."""
    shape, placements, mesh = layout
    count = np.zeros(shape, dtype=np.int64)
    for coordinate in coordinates(mesh):
        count[np.ix_(*region(shape, placements, mesh, coordinate))] += 1
    replicas = int(
        np.prod([s for p, s in zip(placements, mesh, strict=True) if not _cuts(p)], dtype=np.int64)
    )
    assert (count == replicas).all()


@QUICK
@given(layouts())
def test_ranks_that_differ_only_along_replicas_hold_the_same(
    layout: tuple[tuple[int, ...], tuple[Placement, ...], tuple[int, ...]],
) -> None:
    shape, placements, mesh = layout
    for coordinate in coordinates(mesh):
        first = tuple(c if _cuts(p) else 0 for c, p in zip(coordinate, placements, strict=True))
        for a, b in zip(
            region(shape, placements, mesh, coordinate),
            region(shape, placements, mesh, first),
            strict=True,
        ):
            assert a.tolist() == b.tolist()


@QUICK
@given(st.integers(0, 40), st.integers(1, 9))
def test_a_shard_is_what_chunk_gives(size: int, count: int) -> None:
    """torch.chunk is public and what DTensor's Shard is documented by; it leaves out empty ends."""
    chunks = [c.tolist() for c in torch.arange(size).chunk(count)] if size else []
    chunks += [[]] * (count - len(chunks))
    assert [piece(np.arange(size), count, at).tolist() for at in range(count)] == chunks


@QUICK
@given(shapes, mesh_shapes, st.data())
def test_plain_shards_apply_from_left_to_right(
    shape: tuple[int, ...], mesh: tuple[int, ...], data: st.DataObject
) -> None:
    dims = data.draw(st.tuples(*(st.integers(0, len(shape) - 1) for _ in mesh)))
    placements = [shard(dim) for dim in dims]
    whole = torch.arange(int(np.prod(shape))).reshape(shape)
    for coordinate in coordinates(mesh):
        part = whole
        for dim, size, at in zip(dims, mesh, coordinate, strict=True):
            chunks = part.chunk(size, dim) if part.shape[dim] else ()
            empty = part.narrow(dim, 0, 0)
            part = chunks[at] if at < len(chunks) else empty
        index = np.ix_(*region(shape, placements, mesh, coordinate))
        assert whole.numpy()[index].tolist() == part.tolist()


def strided_by_definition(
    size: int, factors: Sequence[int], counts: Sequence[int], coordinate: Sequence[int]
) -> list[int]:
    """torch's own words: cut into factor x count pieces, and take every count-th one.

    Defined for sizes that divide evenly; from left to right, as placements are written.
    """
    indices = list(range(size))
    for factor, count, at in zip(factors, counts, coordinate, strict=True):
        step = len(indices) // (factor * count)
        indices = [
            index
            for block in range(at, factor * count, count)
            for index in indices[block * step : (block + 1) * step]
        ]
    return indices


@pytest.mark.parametrize(
    ("factors", "counts"),
    [
        ((2, 1), (2, 2)),
        ((3, 1), (2, 3)),
        ((2, 1, 1), (2, 2, 2)),
        ((4, 1, 1), (2, 2, 2)),
        ((1, 2, 1), (2, 2, 2)),
        ((2, 2, 1), (3, 2, 2)),
        ((4, 2, 1), (2, 2, 2)),
        ((6, 3, 1), (2, 2, 3)),
    ],
)
def test_strided_shards_mean_what_torch_says(
    factors: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    size = int(np.prod(counts)) * 2
    placements = [strided(0, f) if f > 1 else shard(0) for f in factors]
    for coordinate in coordinates(counts):
        seen = held(size, placements, counts, coordinate, 0)
        assert seen.tolist() == strided_by_definition(size, factors, counts, coordinate)


def test_fsdp_over_tensor_parallelism_with_uneven_rows() -> None:
    """Tensor parallelism cuts 7 rows into 4 and 3, FSDP each of those into 2 and 2, or 2 and 1."""
    parts = {
        coordinate: held(7, [strided(0, 2), shard(0)], (2, 2), coordinate, 0).tolist()
        for coordinate in coordinates((2, 2))
    }
    assert parts == {(0, 0): [0, 1], (0, 1): [4, 5], (1, 0): [2, 3], (1, 1): [6]}


def test_another_dimension_between_does_not_count() -> None:
    placements = [strided(0, 2), shard(1), shard(0)]
    parts = region((4, 4), placements, (2, 2, 2), (1, 0, 0))
    assert [part.tolist() for part in parts] == [[1], [0, 1]]


@pytest.mark.parametrize(
    ("placements", "mesh"),
    [
        ([strided(0, 2)], (2,)),
        ([strided(0, 3), shard(0)], (2, 2)),
        ([shard(0), strided(0, 2)], (2, 2)),
    ],
)
def test_a_split_factor_that_nothing_explains_is_refused(
    placements: list[Placement], mesh: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"split factor [23] on mesh dimension"):
        region((8,), placements, mesh, (0,) * len(mesh))


def test_a_scalar_has_one_region() -> None:
    assert region((), [replicate()], (2,), (1,)) == ()
