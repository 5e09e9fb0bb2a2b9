"""Functions that the tests run on ranks with a GPU."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_cplife.evidence.snapshot import rng_digests
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec


def place(rank: Rank) -> tuple[str, int, str]:
    """The rank's device, torch's current one, and the backend."""
    return str(rank.device), torch.cuda.current_device(), str(dist.get_backend())


def total(rank: Rank) -> float:
    tensor = torch.full((1000,), float(rank.rank + 1), device=rank.device)
    dist.all_reduce(tensor)
    return float(tensor[-1])


def product(rank: Rank, spec: MeshSpec) -> tuple[str, float]:
    """A DTensor product and its gradients: where it is, and what comes out."""
    mesh = rank.mesh(spec)
    a = distribute_tensor(torch.ones(6, 5), mesh, [Shard(0)] * mesh.ndim).requires_grad_()
    b = distribute_tensor(torch.ones(5, 7), mesh, [Shard(1)] * mesh.ndim)
    whole = (a @ b).full_tensor()
    whole.sum().backward()
    assert a.grad is not None
    return whole.device.type, float(whole.sum() + a.grad.full_tensor().sum())


def draws(rank: Rank) -> list[float]:
    return list(torch.rand(3, device=rank.device).tolist())


def streams(rank: Rank) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Digests of the random streams: before a draw on the GPU, after it, and put back."""
    kept = torch.cuda.get_rng_state(rank.device)
    before = rng_digests()
    torch.rand(3, device=rank.device)
    after = rng_digests()
    torch.cuda.set_rng_state(kept, rank.device)
    return before, after, rng_digests()


def another_size(rank: Rank) -> None:
    dist.all_reduce(torch.ones(5 if rank.rank == 1 else 4, device=rank.device))


def raises(rank: Rank) -> None:
    dist.all_reduce(torch.ones(4, device=rank.device))
    if rank.rank == rank.world_size - 1:
        raise LookupError("the planted fault")
    dist.all_reduce(torch.ones(4, device=rank.device))


def absent(rank: Rank) -> None:
    if rank.rank != 1:
        dist.all_reduce(torch.ones(4, device=rank.device))


def breaks_the_device(rank: Rank) -> None:
    """An index beyond the end: CUDA tells of it later, and the process cannot use it again."""
    index = torch.tensor([7], device=rank.device)
    torch.ones(3, device=rank.device)[index]
