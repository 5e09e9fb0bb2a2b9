"""Real gloo ranks for the tests, and what two runs have otherwise."""

from __future__ import annotations

import atexit
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.topology import Topology
from pytest_cplife.reference_impl.trainer import Trainer, TrainerConfig
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Launcher, Rank
from pytest_cplife.mesh import MeshSpec

MESHES = ("dp=1", "cp=2", "dp=2,cp=2", "fsdp=2", "fsdp=2,tp=2", "fsdp=4", "dp=2,cp=2,tp=2")


def world_size(spec: str) -> int:
    return MeshSpec.parse(spec).world_size


def topology(spec: str) -> Topology:
    """The topology of `spec` over the live process group; serial for an empty one."""
    if not spec:
        return Topology()
    return Topology(_here[0].mesh(MeshSpec.parse(spec)))


def trainer(spec: str, dropout: bool = True, **settings: Any) -> Trainer:
    rank = dist.get_rank() if spec else 0
    made = Trainer(TrainerConfig(**settings), topology(spec), torch.device("cpu"), rank)
    if not dropout:
        for module in made.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    return made


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def local_state(run: Trainer) -> dict[str, Tensor]:
    """This rank's part of everything that training changes, by name."""
    state = {f"model.{name}": value for name, value in run.model.state_dict().items()}
    state |= {f"ema.{name}": value for name, value in run.ema.shadow.items()}
    for fqn, parameter in run.model.named_parameters():
        for entry, value in run.optimizer.state.get(parameter, {}).items():
            state[f"optimizer.{fqn}.{entry}"] = value
    return {
        name: (value.to_local() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in state.items()
    }


def full_state(run: Trainer) -> dict[str, Tensor]:
    """The same, gathered."""
    state = {f"model.{name}": value for name, value in run.model.state_dict().items()}
    state |= {f"ema.{name}": value for name, value in run.ema.shadow.items()}
    for fqn, parameter in run.model.named_parameters():
        for entry, value in run.optimizer.state.get(parameter, {}).items():
            state[f"optimizer.{fqn}.{entry}"] = value
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in state.items()
    }


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names under which the two are not bitwise equal."""
    return sorted(
        name
        for name in one.keys() | other.keys()
        if name not in one
        or name not in other
        or one[name].dtype != other[name].dtype
        or not torch.equal(one[name], other[name])
    )


@functools.cache
def launcher() -> Launcher:
    """One pool of ranks per size, live until the interpreter ends."""
    made = make_launcher("processes", timeout=240.0)
    atexit.register(made.close)
    return made


def run_ranks(size: int, body: Callable[..., Any], *args: Any) -> list[Any]:
    """``body(*args)`` on `size` ranks with a gloo group; results in rank order."""
    return launcher().world(size).run(_call, body, args)


def run_serial(body: Callable[..., Any], *args: Any) -> Any:
    """``body(*args)`` in one process without a process group."""
    return launcher().serial_world().run(_call, body, args)[0]


_here: list[Rank] = []


def _call(rank: Rank, body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    _here[:] = [rank]
    return body(*args)
