"""Full tensors from what the ranks hold, put together by the geometry oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pytest_cplife.evidence.geometry import region
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.store import TensorStore


class CannotAssemble(ValueError):
    """The ranks' parts do not make up one tensor; the message says why."""


@dataclass(slots=True)
class Assembler:
    """Puts tensors together one at a time and remembers their digests, not their values."""

    store: TensorStore
    _digests: dict[tuple[object, ...], str] = field(default_factory=dict)

    def digest(self, records: Sequence[TensorRecord]) -> str:
        """Digest of the full tensor that `records` (one per rank) make up.

        Raises:
            CannotAssemble: they do not.
        """
        first = records[0]
        if first.kind != "dtensor":
            if first.digest is None:
                raise CannotAssemble(_no_values(0, first))
            return first.digest
        key = tuple((r.digest, r.shape, r.placements, r.mesh) for r in records)
        if key not in self._digests:
            self._digests[key] = self.store.put(self.full(records), keep=False)
        return self._digests[key]

    def full(self, records: Sequence[TensorRecord]) -> torch.Tensor:
        """The full tensor on the CPU, whatever the placements.

        Raises:
            CannotAssemble: shapes, meshes or placements differ between ranks, a local part is not
                what its placements say, or there are no values.
        """
        first = records[0]
        for rank, record in enumerate(records if first.kind == "dtensor" else records[:1]):
            if record.digest is None:
                raise CannotAssemble(_no_values(rank, record))
        if first.kind != "dtensor":
            return self._local(first)
        problem = geometry_problem(records)
        if problem:
            raise CannotAssemble(problem)
        if any(p.kind == "partial" for p in first.placements):
            return self._reduced(records)
        local = [r for r in records if _counts(r)]
        itemsize = self._local(local[0]).element_size()
        raw = np.zeros((*first.shape, itemsize), dtype=np.uint8)
        for record in local:
            part = self._local(record)
            if part.numel():
                values = part.contiguous().reshape(-1).view(torch.uint8).numpy()
                raw[_index(record)] = values.reshape(*part.shape, itemsize)
        flat = torch.from_numpy(raw.reshape(-1))
        if not flat.numel():
            return torch.empty(first.shape, dtype=self._local(local[0]).dtype)
        return flat.view(self._local(local[0]).dtype).reshape(first.shape)

    def _reduced(self, records: Sequence[TensorRecord]) -> torch.Tensor:
        first = records[0]
        total = torch.zeros(first.shape, dtype=self._local(first).dtype)
        seen: set[tuple[int, ...]] = set()
        for record in records:
            assert record.mesh is not None and record.mesh.coordinate is not None
            # Copies of the tensor on sibling sub-meshes must not be summed twice.
            if _counts(record) and record.mesh.coordinate not in seen:
                seen.add(record.mesh.coordinate)
                index = tuple(torch.from_numpy(i) for i in np.ix_(*_region(record)))
                total[index] += self._local(record)
        for placement, size in zip(first.placements, _mesh_shape(first), strict=True):
            if placement.kind == "partial":
                if placement.text not in ("P(sum)", "P(avg)"):
                    raise CannotAssemble(f"placement {placement} cannot be summed")
                if placement.text == "P(avg)":
                    total /= size
        return total

    def _local(self, record: TensorRecord) -> torch.Tensor:
        assert record.digest is not None
        return self.store.get(record.digest, record.stored_dtype, record.local_shape)


def geometry_problem(records: Sequence[TensorRecord]) -> str:
    """Why the ranks' DTensor parts do not make up one tensor; empty where they do."""
    first = records[0]
    for rank, record in enumerate(records):
        for what in ("kind", "shape", "dtype", "placements"):
            if getattr(record, what) != getattr(first, what):
                return (
                    f"{what} is {_show(getattr(first, what))} on rank 0"
                    f" but {_show(getattr(record, what))} on rank {rank}"
                )
        if record.local_dtype:
            return f"rank {rank} holds {record.local_dtype} in a tensor of {record.dtype}"
        if first.mesh is None or record.mesh is None:
            continue
        if record.mesh.shape != first.mesh.shape or record.mesh.names != first.mesh.names:
            return f"rank 0 has a mesh {_dims(first)}, rank {rank} one of {_dims(record)}"
        if record.mesh.coordinate is None:
            return f"rank {rank} is not in the mesh"
        if any(p.kind == "unknown" for p in record.placements):
            return f"placements {_show(record.placements)} are not known"
        try:
            expected = tuple(len(indices) for indices in _region(record))
        except ValueError as error:
            return str(error)
        if expected != record.local_shape:
            return (
                f"rank {rank} holds {record.local_shape} where {_show(record.placements)} of"
                f" {record.shape} over {_mesh_shape(record)} gives {expected}"
            )
    return ""


def replica_sets(records: Sequence[TensorRecord]) -> list[list[int]]:
    """Ranks that ought to hold the same bytes: the same coordinate in every sharded dimension."""
    sets: dict[tuple[object, ...], list[int]] = {}
    for rank, record in enumerate(records):
        if record.mesh is None or record.mesh.coordinate is None:
            key: tuple[object, ...] = ("plain",)
        else:
            # Two sub-meshes (tp of dp=0, tp of dp=1) hold copies of the same tensor: only the
            # coordinate counts, not which ranks the mesh spans.
            key = tuple(
                c if p.kind in ("shard", "strided") else (c, "own") if p.kind == "partial" else 0
                for c, p in zip(record.mesh.coordinate, record.placements, strict=True)
            )
        sets.setdefault(key, []).append(rank)
    return list(sets.values())


def _counts(record: TensorRecord) -> bool:
    """True for one rank of each set of replicas."""
    assert record.mesh is not None and record.mesh.coordinate is not None
    return all(
        c == 0 or p.kind != "replicate"
        for c, p in zip(record.mesh.coordinate, record.placements, strict=True)
    )


def _region(record: TensorRecord) -> tuple[np.ndarray, ...]:
    assert record.mesh is not None and record.mesh.coordinate is not None
    return region(record.shape, record.placements, record.mesh.shape, record.mesh.coordinate)


def _index(record: TensorRecord) -> tuple[np.ndarray, ...]:
    return np.ix_(*_region(record)) if record.shape else ()


def _mesh_shape(record: TensorRecord) -> tuple[int, ...]:
    assert record.mesh is not None
    return record.mesh.shape


def _dims(record: TensorRecord) -> str:
    assert record.mesh is not None
    return ",".join(
        f"{name}={size}" for name, size in zip(record.mesh.names, record.mesh.shape, strict=True)
    )


def _no_values(rank: int, record: TensorRecord) -> str:
    return f"rank {rank} holds no values (device {record.device})"


def _show(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
