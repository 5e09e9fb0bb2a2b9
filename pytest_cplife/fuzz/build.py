"""Described tensors made real on a rank, and real ones read back as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from pytest_cplife.fuzz import trees, values
from pytest_cplife.fuzz.tensors import TensorSpec, parse_placement


def torch_placement(text: str) -> Placement:
    """The placement that `text` stands for."""
    record = parse_placement(text)
    if record.kind == "shard":
        return Shard(record.dim)
    if record.kind == "strided":
        return _StridedShard(record.dim, split_factor=record.split_factor)
    return Partial(text[2:-1]) if record.kind == "partial" else Replicate()


def build_tensor(spec: TensorSpec, mesh: DeviceMesh) -> torch.Tensor:
    """The tensor on this rank of `mesh`: the local part is cut by the oracle, not by torch.

    No communication; every rank of the mesh can also build alone.
    """
    if spec.placements is None:
        return on_memory(values.full_bytes(spec), spec.dtype, spec.layout).to(mesh.device_type)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("this rank is not in the mesh")
    raw = values.local_bytes(spec, tuple(mesh.shape), coordinate)
    return DTensor.from_local(
        on_memory(raw, spec.dtype, spec.layout).to(mesh.device_type),
        mesh,
        [torch_placement(text) for text in spec.placements],
        run_check=False,
        shape=torch.Size(spec.shape),
        stride=spec.stride,
    )


def build(tree: trees.Tree, mesh: DeviceMesh) -> Any:
    """The whole tree on this rank of `mesh`."""
    return trees.build_tree(tree, lambda spec: build_tensor(spec, mesh))


def on_memory(raw: values.Bytes, dtype: str, layout: str) -> torch.Tensor:
    """A plain tensor of the bytes `raw`, of shape ``(*shape, itemsize)``, lying as asked for."""
    flat = from_bytes(raw, dtype)
    if layout == "transposed" and flat.ndim > 1:
        order = tuple(reversed(range(flat.ndim)))
        return flat.permute(order).contiguous().permute(order)
    if layout == "offset":
        storage = flat.new_zeros(flat.numel() + 5)
        view = storage[3 : 3 + flat.numel()].view(flat.shape)
        return view.copy_(flat)
    if layout == "stepped" and flat.ndim:
        storage = flat.new_zeros(*flat.shape[:-1], 2 * flat.shape[-1])
        return storage[..., ::2].copy_(flat)
    if layout == "expanded" and flat.ndim and flat.shape[0]:
        return flat[:1].clone().expand(flat.shape)
    return flat


def from_bytes(raw: values.Bytes, dtype: str) -> torch.Tensor:
    """A contiguous tensor of bytes of shape ``(*shape, itemsize)``."""
    kind: torch.dtype = getattr(torch, dtype)
    shape = raw.shape[:-1]
    if not raw.size:
        return torch.empty(shape, dtype=kind)
    flat = torch.from_numpy(np.ascontiguousarray(raw).reshape(-1).copy())
    return flat.view(kind).reshape(shape)


def to_bytes(tensor: torch.Tensor) -> values.Bytes:
    """The bytes of a plain tensor, of shape ``(*shape, itemsize)``."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    # Always a copy: to torch a tensor of one element, or of none, is contiguous whatever its
    # strides, and then cannot be seen as bytes.
    plain = plain.clone(memory_format=torch.contiguous_format)
    raw = plain.reshape(-1).view(torch.uint8).numpy()
    result: values.Bytes = raw.reshape(*plain.shape, plain.element_size())
    return result
