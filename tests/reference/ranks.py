"""Real gloo ranks for a test: forked processes that call one function each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.topology import Topology
from pytest_cplife.reference_impl.trainer import Trainer, TrainerConfig
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

MESHES = ("dp=1", "cp=2", "dp=2,cp=2", "fsdp=2", "fsdp=2,tp=2", "fsdp=4", "dp=2,cp=2,tp=2")


def dims(spec: str) -> dict[str, int]:
    return {part.split("=")[0]: int(part.split("=")[1]) for part in spec.split(",")}


def world_size(spec: str) -> int:
    return int(np.prod(list(dims(spec).values())))


def topology(spec: str) -> Topology:
    """The topology of `spec` over the live process group; serial for an empty one."""
    if not spec:
        return Topology()
    shape = dims(spec)
    return Topology(init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape)))


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


def run_ranks(size: int, body: Callable[..., Any], *args: Any, timeout: float = 120.0) -> list[Any]:
    """``body(*args)`` on `size` forked ranks with a gloo group; results in rank order."""
    return _run(size, True, body, args, timeout)


def run_serial(body: Callable[..., Any], *args: Any, timeout: float = 120.0) -> Any:
    """``body(*args)`` in one forked process without a process group."""
    return _run(1, False, body, args, timeout)[0]


def _run(
    size: int, group: bool, body: Callable[..., Any], args: tuple[Any, ...], timeout: float
) -> list[Any]:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        workers = [
            context.Process(
                target=_worker, args=(rank, size, group, folder, pipes[rank][1], body, args)
            )
            for rank in range(size)
        ]
        for worker, pipe in zip(workers, pipes, strict=True):
            worker.start()
            pipe[1].close()
        results: list[Any] = [None] * size
        failures = []
        try:
            for rank, (receiver, _) in enumerate(pipes):
                if not receiver.poll(timeout):
                    raise TimeoutError(f"rank {rank} of {size} said nothing for {timeout} s")
                try:
                    fine, results[rank] = pickle.loads(receiver.recv_bytes())
                except EOFError:
                    fine, results[rank] = False, "died"
                if not fine:
                    failures.append(f"rank {rank}: {results[rank]}")
            assert not failures, "\n".join(failures)
        finally:
            for worker in workers:
                worker.join(0.0 if failures else 10.0)
                if worker.is_alive():
                    worker.kill()
                    worker.join()
    return results


def _worker(
    rank: int,
    size: int,
    group: bool,
    folder: str,
    pipe: Connection,
    body: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    try:
        if group:
            store = dist.FileStore(str(Path(folder) / "store"), size)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", rank=rank, world_size=size, store=store)
        pipe.send_bytes(pickle.dumps((True, body(*args))))  # not torch's shared memory
        if group:
            dist.destroy_process_group()
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
    finally:
        pipe.close()
        os._exit(0)  # no pytest teardown in a child
