"""What every harness runs as its test: four ranks, a mesh of 2 x 2, a product and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_cplife.mesh import MeshSpec

RANKS = 4
SPEC = MeshSpec.parse("dp=2,cp=2")
SIZE = 64
_meshes: list[DeviceMesh] = []


def work(mesh: DeviceMesh) -> float:
    """Two tensors distributed, multiplied, differentiated, and both gradients gathered."""
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(SIZE, SIZE), mesh, [Shard(0), Replicate()]).requires_grad_()
    w = distribute_tensor(torch.randn(SIZE, SIZE), mesh, [Replicate(), Shard(1)]).requires_grad_()
    product = x @ w
    assert isinstance(product, DTensor)
    torch.autograd.backward(product.sum())
    assert isinstance(x.grad, DTensor) and isinstance(w.grad, DTensor)
    return float(x.grad.full_tensor().sum() + w.grad.full_tensor().sum())


def fresh_mesh() -> DeviceMesh:
    """For harnesses whose process group lives as long as one test."""
    return init_device_mesh("cpu", SPEC.shape, mesh_dim_names=SPEC.names)


def kept_mesh() -> DeviceMesh:
    """For harnesses whose process group lives longer."""
    if not _meshes:
        _meshes.append(fresh_mesh())
    return _meshes[0]


def on_rank(rank: Any) -> float:
    """The workload on our own ranks."""
    return work(rank.mesh(SPEC))


def wide(rank: Any) -> float:
    """The same on any number of ranks, as one dimension."""
    return work_on_line(rank.mesh(MeshSpec.parse(f"cp={rank.world_size}")))


def work_on_line(mesh: DeviceMesh) -> float:
    x = distribute_tensor(torch.ones(SIZE, SIZE), mesh, [Shard(0)])
    return float((x @ x.redistribute(mesh, [Replicate()])).full_tensor().sum())


def proportional_set_size(rank: Any) -> int:
    """KiB of memory that this rank is charged with, what it shares split among the sharers."""
    wide(rank)
    with open("/proc/self/smaps_rollup") as lines:  # noqa: PTH123
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
