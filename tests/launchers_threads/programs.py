"""What trainers do with distributed models: bodies whose bytes are compared over launchers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec

Program = Callable[[Rank, Path], list[Tensor]]


class Net(nn.Module):
    """Sizes that no mesh divides, dropout, and a block that is computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(7, 13)
        self.drop = nn.Dropout(0.3)
        self.down = nn.Linear(13, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(self.up, inputs, use_reentrant=False)
        assert isinstance(hidden, Tensor)
        result: Tensor = self.down(self.drop(torch.relu(hidden)))
        return result


def build() -> Net:
    torch.manual_seed(1)
    return Net()


def train(rank: Rank, model: nn.Module, net: nn.Module, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    torch.manual_seed(50 + rank.rank)
    for _ in range(steps):
        model(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def contents(net: nn.Module) -> list[Tensor]:
    """This rank's part and the whole of every parameter."""
    found = []
    for parameter in net.parameters():
        value = parameter.detach()
        found += [value.to_local(), value.full_tensor()] if isinstance(value, DTensor) else [value]
    return [tensor.clone() for tensor in found]


def fsdp(rank: Rank, folder: Path) -> list[Tensor]:
    net, mesh = build(), rank.mesh(MeshSpec.parse("fsdp=4"))
    fully_shard(net.up, mesh=mesh)
    train(rank, fully_shard(net, mesh=mesh), net)
    return contents(net)


def hybrid_with_checkpoint(rank: Rank, folder: Path) -> list[Tensor]:
    """HSDP, saved to a distributed checkpoint and loaded into a fresh model on another mesh."""
    net, mesh = build(), rank.mesh(MeshSpec.parse("dp=2,fsdp=2"))
    optimizer = train(rank, fully_shard(net, mesh=mesh), net)
    state, moments = get_state_dict(net, optimizer)
    dcp.save({"model": state, "optimizer": moments}, checkpoint_id=folder)
    fresh = fully_shard(Net(), mesh=rank.mesh(MeshSpec.parse("fsdp=4")))
    resumed = torch.optim.AdamW(fresh.parameters())
    state, moments = get_state_dict(fresh, resumed)
    dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(fresh, resumed, model_state_dict=state, optim_state_dict=moments)
    restored = contents(fresh)
    for mine, other in zip(contents(net)[1::2], restored[1::2], strict=True):
        assert torch.equal(mine, other)
    train(rank, fresh, fresh, steps=1)
    return [*restored, *contents(fresh)]


def tensor_parallel(rank: Rank, folder: Path) -> list[Tensor]:
    net, mesh = build(), rank.mesh(MeshSpec.parse("fsdp=2,tp=2"))
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    parallelize_module(net, mesh["tp"], plan)
    net.drop.p = 0.0
    train(rank, fully_shard(net, mesh=mesh["fsdp"]), net)
    return contents(net)


def data_parallel(rank: Rank, folder: Path) -> list[Tensor]:
    """DDP waits for its buckets in C++."""
    net = build()
    train(rank, DistributedDataParallel(net, bucket_cap_mb=1, find_unused_parameters=True), net)
    return contents(net)


def uneven(rank: Rank, folder: Path) -> list[Tensor]:
    """Redistributions whose local sizes depend on the rank, cached by torch per mesh."""
    mesh = rank.mesh(MeshSpec.parse("dp=2,cp=2"))
    whole = torch.arange(35.0).reshape(7, 5)
    tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(0)])
    found = []
    for placements in (
        [Shard(1), Replicate()],
        [Shard(0), Shard(1)],
        [Replicate(), Shard(0)],
        [Shard(1), Shard(1)],
    ):
        tensor = tensor.redistribute(mesh, placements)
        found += [tensor.to_local(), (tensor @ tensor.T).full_tensor()]
    assert torch.equal(tensor.full_tensor(), whole)
    return [t.clone() for t in found]


def random_on_the_mesh(rank: Rank, folder: Path) -> list[Tensor]:
    """DTensor draws each rank's part from the rank's own stream."""
    mesh = rank.mesh(MeshSpec.parse("dp=2,cp=2"))
    torch.manual_seed(9)
    tensor = distribute_tensor(torch.empty(6, 4), mesh, [Shard(0), Shard(1)])
    nn.init.normal_(tensor)
    dist.barrier()
    dropped = nn.functional.dropout(tensor, 0.4)
    assert isinstance(dropped, DTensor)
    return [tensor.to_local(), dropped.to_local(), torch.rand(3)]


PROGRAMS: tuple[Program, ...] = (
    fsdp,
    hybrid_with_checkpoint,
    tensor_parallel,
    data_parallel,
    uneven,
    random_on_the_mesh,
)
