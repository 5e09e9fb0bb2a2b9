"""Ways to plain tensors and back that are wrong for one geometry each, and right for the rest.

How small the example is that shows each of them is asserted in ``tests/fuzz``.
"""

from __future__ import annotations

from typing import Any

import torch
from pytest_cplife.selftest.faults.careful import Careful, cut, cut_at, wrap
from pytest_cplife.selftest.planting import plant
from torch.distributed.tensor import DTensor, Shard
from torch.utils import _pytree as pytree


def _uneven(tensor: torch.Tensor) -> bool:
    if not isinstance(tensor, DTensor):
        return False
    sizes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return any(isinstance(p, Shard) and tensor.shape[p.dim] % n for p, n in sizes)


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class UnevenLastShard(Careful):
    """The last rank's shard is padded, and the padding stays where the length is odd."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        return torch.cat([full, torch.zeros_like(full[:1])]) if _uneven(tensor) else full


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class EmptyShard(Careful):
    """A rank that has nothing of a tensor makes all of it zero."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        if isinstance(tensor, DTensor):
            for placement, count in zip(tensor.placements, tensor.device_mesh.shape, strict=True):
                if isinstance(placement, Shard) and 0 < tensor.shape[placement.dim] < count:
                    return torch.zeros_like(full)
        return full


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class StridedOrder(Careful):
    """Strided shards that divide are gathered as if they were cut from left to right."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor) and not tensor.shape[:1].numel() % tensor.device_mesh.size():
            naive = [Shard(p.dim) if hasattr(p, "split_factor") else p for p in tensor.placements]
            if all(p == Shard(0) for p in naive):
                local, mesh = tensor.to_local().contiguous(), tensor.device_mesh
                return DTensor.from_local(local, mesh, naive).full_tensor()
        return super().plain(tensor)


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class OneElement(Careful):
    """A tensor of one element loses its shape."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        return full.reshape(()) if full.numel() == 1 else full


@plant(Careful, rule="FUZZ-01", subject=".second", mesh="")
class SameShape(Careful):
    """Gathered tensors are remembered by shape and dtype."""

    def to_plain(self, tree: Any) -> Any:
        self.seen: dict[Any, torch.Tensor] = {}
        return super().to_plain(tree)

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        return self.seen.setdefault((full.shape, full.dtype), full)


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class SwappedMesh(Careful):
    """A rank reads its place in the mesh from right to left."""

    def aligned(self, value: torch.Tensor, template: DTensor) -> DTensor:
        coordinate = template.device_mesh.get_coordinate()
        assert coordinate is not None
        return wrap(cut_at(value, template, list(coordinate)[::-1]), template)


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class SignOfZero(Careful):
    """Adding nothing to a tensor makes +0.0 of -0.0."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        return full + 0 if full.is_floating_point() else full


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class ThroughFloat(Careful):
    """Values pass through float32."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        return full.float().double() if full.dtype == torch.float64 else full


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class IgnoredStride(Careful):
    """A plain tensor is read from its storage as if it were contiguous."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor) or tensor.is_contiguous():
            return super().plain(tensor)
        flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        repeated = flat.repeat(1 + tensor.numel() // max(1, flat.numel()))
        return repeated[: tensor.numel()].reshape(tensor.shape)


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class IgnoredOffset(Careful):
    """A plain tensor is read from the beginning of its storage."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            return super().plain(tensor)
        return torch.as_strided(tensor, tensor.shape, tensor.stride(), 0).clone()


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class SecondDimension(Careful):
    """Shards of the second dimension are put one under the other."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        if isinstance(tensor, DTensor) and tensor.placements[0] == Shard(1):
            if tensor.shape[1] % 2:
                return full
            return torch.cat(full.chunk(2, dim=1)).reshape(full.shape)
        return full


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class NoDimension(Careful):
    """A tensor without dimensions comes back plain."""

    def either(self, value: Any, template: Any) -> Any:
        return super().either(value, template) if getattr(value, "ndim", 1) else value


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class TallTensor(Careful):
    """Gathers in pieces of 64 rows, and forgets the rest."""

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        full = super().plain(tensor)
        if full.ndim and full.shape[0] > 64:
            full[64:] = 0
        return full


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class TransposedValues(Careful):
    """What is read for a template that is not contiguous goes there in the order of memory."""

    def aligned(self, value: torch.Tensor, template: DTensor) -> DTensor:
        local, there = cut(value, template), template.to_local()
        if there.is_contiguous():
            return wrap(local, template)
        swapped = local.contiguous().as_strided(there.shape, there.stride())
        return wrap(swapped, template)


@plant(Careful, rule="FUZZ-01", subject="it", mesh="")
class BytesAsText(Careful):
    """Bytes are taken for text, which a file of another format has in their place."""

    def to_plain(self, tree: Any) -> Any:
        return pytree.tree_map_only(bytes, _text, super().to_plain(tree))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


@plant(Careful, rule="FUZZ-02", subject="it", mesh="")
class TransposedTemplate(Careful):
    """The stride of the template is forgotten."""

    def aligned(self, value: torch.Tensor, template: DTensor) -> DTensor:
        local = cut(value, template)
        return wrap(local, template, stride=value.contiguous().stride())
