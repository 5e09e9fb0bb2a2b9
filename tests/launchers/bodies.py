"""Functions that the tests run on ranks: at the top level, so that they can be found by name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec

VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def who(rank: Rank) -> tuple[int, int, int, bool, bool]:
    return (os.getpid(), rank.rank, rank.world_size, rank.serial, dist.is_initialized())


def total(rank: Rank, value: float) -> float:
    tensor = torch.full((4,), value + rank.rank)
    dist.all_reduce(tensor)
    return float(tensor[0])


def backend(rank: Rank) -> str:
    return str(dist.get_backend())


def variables(rank: Rank) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in VARIABLES}


def environment(rank: Rank, name: str) -> str | None:
    return os.environ.get(name)


def matmul(rank: Rank, spec: MeshSpec) -> tuple[int, float]:
    """A DTensor op; the mesh's identity tells whether it is the same one at the next call."""
    mesh = rank.mesh(spec)
    a = distribute_tensor(torch.ones(6, 5, requires_grad=True), mesh, [Shard(0)] * mesh.ndim)
    b = distribute_tensor(torch.ones(5, 7), mesh, [Shard(1)] * mesh.ndim)
    product = (a @ b).full_tensor()
    product.sum().backward()
    assert a.grad is not None
    return id(mesh), float(product.sum() + a.grad.full_tensor().sum())


def own_mesh(rank: Rank, names: tuple[str, ...], shape: tuple[int, ...]) -> float:
    """A trainer that builds its own mesh at every start, equal to the last one."""
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=names)
    a = distribute_tensor(torch.ones(6, 5), mesh, [Shard(0)] * mesh.ndim)
    return float((a @ a.T).full_tensor().sum())


def flattened(rank: Rank, spec: MeshSpec) -> float:
    """Over fewer ranks than the world, whose own group would be used otherwise."""
    mesh = rank.mesh(spec)[spec.names[:2]]._flatten()
    return float(distribute_tensor(torch.ones(6, 5), mesh, [Shard(0)]).full_tensor().sum())


def own_pair(rank: Rank) -> float:
    """A group that only its members make, and that the trainer itself destroys in the end."""
    group = dist.new_group([0, 1], use_local_synchronization=True)
    tensor = torch.full((4,), 1.0 + rank.rank)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    return float(tensor[0])


def set_in_store(rank: Rank, key: str) -> int:
    """How many ranks have left `key` in the world's store, this one included."""
    count = int(dist.distributed_c10d._get_default_store().add(key, 1))
    dist.barrier()
    return count


def draw(rank: Rank) -> tuple[float, ...]:
    import random

    import numpy as np

    return (random.random(), float(np.random.rand()), float(torch.rand(())))


def join_by_environment(rank: Rank) -> tuple[int, float]:
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    return os.getpid(), total(rank, 1.0)


def destroy_world(rank: Rank) -> None:
    dist.destroy_process_group()


def ask_for_mesh(rank: Rank, spec: MeshSpec) -> None:
    rank.mesh(spec)


def echo(rank: Rank, value: Any) -> Any:
    return value


def give_lock(rank: Rank) -> Any:
    import threading

    return threading.Lock()


def folder(rank: Rank) -> str:
    return str(Path.cwd())


def private_folder(rank: Rank) -> list[Path]:
    """Where this rank's output goes, which is the pool's own folder."""
    return [Path("/proc/self/fd/1").readlink().parent]


def sleep(rank: Rank, seconds: float) -> None:
    time.sleep(seconds)
