"""Placements and records written by hand, without a process group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_cplife.evidence.records import MeshView, Placement, TensorRecord
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.mesh import MeshSpec


def replicate() -> Placement:
    return Placement("replicate", text="R")


def shard(dim: int) -> Placement:
    return Placement("shard", dim, text=f"S({dim})")


def strided(dim: int, factor: int) -> Placement:
    return Placement("strided", dim, factor, text=f"_S({dim}, {factor})")


def partial(operation: str = "sum") -> Placement:
    return Placement("partial", text=f"P({operation})")


def mesh_views(spec: str) -> list[MeshView]:
    """The mesh as each rank sees it."""
    mesh = MeshSpec.parse(spec)
    return [
        MeshView(mesh.names, mesh.shape, tuple(range(mesh.world_size)), "cpu", coordinate)
        for coordinate in itertools.product(*(range(size) for size in mesh.shape))
    ]


def plain(tensor: torch.Tensor, store: TensorStore, **changes: Any) -> TensorRecord:
    """The record of a plain tensor."""
    record = TensorRecord(
        kind="plain",
        type_name="Tensor",
        device="cpu",
        dtype=str(tensor.dtype),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        local_shape=tuple(tensor.shape),
        requires_grad=True,
        mesh=None,
        placements=(),
        digest=store.put(tensor),
        storage_bytes=tensor.untyped_storage().nbytes(),
        alias=0,
        identity=0,
    )
    return replace(record, **changes)


def dtensor(
    part: torch.Tensor,
    store: TensorStore,
    shape: Sequence[int],
    mesh: MeshView,
    *placements: Placement,
    **changes: Any,
) -> TensorRecord:
    """The record of a DTensor of which this rank holds `part`."""
    record = replace(
        plain(part, store),
        kind="dtensor",
        type_name="DTensor",
        shape=tuple(shape),
        stride=tuple(torch.empty(tuple(shape), device="meta").stride()),
        mesh=mesh,
        placements=placements,
    )
    return replace(record, **changes)


def cut(
    whole: torch.Tensor, store: TensorStore, spec: str, *placements: Placement, **changes: Any
) -> list[TensorRecord]:
    """One record per rank of a tensor under plain shards and replicas, cut by torch.chunk."""
    records = []
    for mesh in mesh_views(spec):
        assert mesh.coordinate is not None
        part = whole
        for placement, size, at in zip(placements, mesh.shape, mesh.coordinate, strict=True):
            if placement.kind == "shard":
                chunks = part.chunk(size, placement.dim) if part.shape[placement.dim] else ()
                part = chunks[at] if at < len(chunks) else part.narrow(placement.dim, 0, 0)
        records.append(dtensor(part, store, whole.shape, mesh, *placements, **changes))
    return records
