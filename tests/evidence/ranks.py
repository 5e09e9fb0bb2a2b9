"""What the ranks of a world do in these tests: make real DTensors, and record them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pytest_cplife.evidence.observe import view_tensor
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.snapshot import Snapshot, take_snapshot
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.evidence.trace import StepRecord, tracing
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.scenarios.placeholders import call_placeholders
from tests.evidence.toys import ToyRun

Layout = tuple[tuple[int, ...], tuple[int | str, ...]]
"""A shape, and per mesh dimension a tensor dimension, ``"R"`` or ``"P"``."""


def placements(names: tuple[int | str, ...]) -> list[Any]:
    kinds = {"R": Replicate(), "P": Partial()}
    return [Shard(name) if isinstance(name, int) else kinds[name] for name in names]


def whole(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count, dtype=torch.float32) * 0.37 - 1).to(dtype).reshape(shape)


def distributed(
    rank: Rank, spec: str, layouts: list[Layout], folder: Path
) -> list[tuple[TensorRecord, list[list[float]]]]:
    """For each layout the record, and what torch says this rank holds."""
    mesh, store = rank.mesh(MeshSpec.parse(spec)), TensorStore(folder)
    seen = []
    for shape, names in layouts:
        tensor = distribute_tensor(whole(shape), mesh, placements(names))
        seen.append((view_tensor(tensor, store), tensor.to_local().tolist()))
    return seen


def summed(rank: Rank, spec: str, folder: Path) -> tuple[TensorRecord, list[float]]:
    """A partial sum, and the full tensor that torch makes of it."""
    mesh, store = rank.mesh(MeshSpec.parse(spec)), TensorStore(folder)
    local = whole((3,)) + rank.rank
    tensor = DTensor.from_local(local, mesh, placements(("P", "R")), run_check=False)
    full = tensor.full_tensor()
    return view_tensor(tensor, store), full.tolist()


def in_flight(rank: Rank, spec: str, folder: Path) -> tuple[TensorRecord, list[float]]:
    """A tensor whose gather has been started, not waited for."""
    mesh, store = rank.mesh(MeshSpec.parse(spec)), TensorStore(folder)
    sharded = distribute_tensor(whole((5,)), mesh, [Shard(0)])
    tensor = sharded.redistribute(mesh, [Replicate()], async_op=True)
    return view_tensor(tensor, store), whole((5,)).tolist()


class Block(nn.Module):
    """Column- and row-parallel layers of sizes that nothing divides, beside one left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 7)
        self.down = nn.Linear(7, 5)
        self.norm = nn.LayerNorm(5)
        self.later = Later()
        with torch.no_grad():
            for position, parameter in enumerate(self.parameters()):
                parameter.copy_(whole(tuple(parameter.shape)) + position)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.down(self.up(x).relu()))
        return out


class Later(nn.Module):
    """Not ported yet."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def two_dimensional(rank: Rank, spec: str) -> Block:
    """FSDP2, over tensor parallelism where the mesh has a dimension for it."""
    mesh = rank.mesh(MeshSpec.parse(spec))
    names = MeshSpec.parse(spec).names
    model = Block()
    if "tp" in names:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
    data = mesh[tuple(name for name in names if name != "tp")]
    for module in (model.later, model):
        fully_shard(module, mesh=data)
    return model


def fsdp(rank: Rank, spec: str, folder: Path) -> dict[str, TensorRecord]:
    store = TensorStore(folder)
    return {
        name: view_tensor(p, store) for name, p in two_dimensional(rank, spec).named_parameters()
    }


def placeholder_first(rank: Rank, spec: str) -> tuple[dict[str, str], list[float]]:
    """Call a placeholder before the model itself has ever run."""
    model = two_dimensional(rank, spec)
    seen = call_placeholders(model, ["later"])
    return seen, model(torch.ones(2, 3)).flatten().tolist()


class ShardedRun(ToyRun):
    """The toy, with its weights made DTensors by FSDP2."""

    def __init__(self, rank: Rank, spec: str) -> None:
        super().__init__()
        self.model = two_dimensional(rank, spec)  # type: ignore[assignment]
        parameters = list(self.model.parameters())
        self.optimizers = [torch.optim.AdamW(parameters, lr=0.1, foreach=False)]
        self.schedulers = [torch.optim.lr_scheduler.StepLR(self.optimizers[0], 1, 0.5)]

    def train(self, num_steps: int) -> list[float]:
        losses = []
        for _ in range(num_steps):
            loss = self.model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            self.optimizers[0].step()
            self.global_step += 1
            losses.append(float(loss.detach()))
        return losses


def observed(rank: Rank, spec: str, folder: Path) -> tuple[Snapshot, list[StepRecord], bool]:
    """A sharded run that is looked at, and whether looking changed what it computes."""
    store = TensorStore(folder)
    run, alone = ShardedRun(rank, spec), ShardedRun(rank, spec)
    with tracing(run, store) as trace:
        losses = run.train(1)
    take_snapshot("on the way", rank.rank, run, store)
    losses += run.train(1)
    same = losses == alone.train(2)
    return take_snapshot("now", rank.rank, run, store), trace.steps, same
