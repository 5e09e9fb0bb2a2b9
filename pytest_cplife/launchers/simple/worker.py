"""One rank of a pool: a forked process that serves calls until its pipe is closed."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_cplife.launchers.simple.hygiene import Baseline
from pytest_cplife.launchers.simple.private import process_groups, rank_store
from pytest_cplife.mesh import MeshSpec

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@dataclass(frozen=True, slots=True)
class Berth:
    """Where a worker stands: what it needs to know to become a rank.

    `store` is the path of the rendezvous file; empty where no group is made. `port` is what
    MASTER_PORT says, for trainers that make the group themselves.
    """

    rank: int
    size: int
    serial: bool
    device: str
    backend: str
    store: str
    port: int
    timeout: float
    output: str


@dataclass(slots=True)
class ProcessRank:
    """The rank as a scenario sees it."""

    rank: int
    world_size: int
    device: torch.device
    serial: bool
    meshes: dict[MeshSpec, DeviceMesh] = field(default_factory=dict)

    def mesh(self, spec: MeshSpec) -> DeviceMesh:
        """See :meth:`pytest_cplife.launchers.base.Rank.mesh`."""
        if self.serial or not dist.is_initialized():
            raise RuntimeError(
                f"no process group is initialised, so there is no mesh for {spec.option!r}"
            )
        if spec.world_size != self.world_size:
            raise RuntimeError(
                f"mesh {spec.option!r} needs {spec.world_size} ranks; this world has"
                f" {self.world_size}"
            )
        if spec not in self.meshes:
            self.meshes[spec] = dist.init_device_mesh(
                self.device.type, spec.shape, mesh_dim_names=spec.names
            )
        return self.meshes[spec]


def serve(berth: Berth, pipe: Connection) -> None:
    """Become the rank of `berth` and serve calls; never returns."""
    # Nothing inherited from pytest may run at the end: no atexit, no captured streams.
    try:
        _redirect(berth.output)
        rank = _become(berth)
        # Meshes make groups; those are kept as long as the world lives.
        baseline = Baseline.take()
        pipe.send_bytes(pickle.dumps(("ready", time.monotonic(), None)))
        while True:
            try:
                fn, args = pickle.loads(pipe.recv_bytes())
            except EOFError:
                break
            pipe.send_bytes(_call(rank, fn, args))
            groups = _kept(rank)
            baseline.restore(groups)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _become(berth: Berth) -> ProcessRank:
    torch.set_num_threads(1)
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    if not berth.serial:
        os.environ.update(
            RANK=str(berth.rank),
            LOCAL_RANK=str(berth.rank),
            WORLD_SIZE=str(berth.size),
            LOCAL_WORLD_SIZE=str(berth.size),
            GROUP_RANK="0",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(berth.port),
        )
    device = torch.device(berth.device)
    if device.type == "cuda":
        device = torch.device("cuda", berth.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if berth.store:
        dist.init_process_group(
            berth.backend,
            rank=berth.rank,
            world_size=berth.size,
            store=rank_store(berth.store, berth.size, berth.timeout),
            timeout=timedelta(seconds=berth.timeout),
        )
        dist.barrier()
    return ProcessRank(berth.rank, berth.size, device, berth.serial)


def _kept(rank: ProcessRank) -> set[Any]:
    """The process groups that outlive a call: the world's and the cached meshes'."""
    if not dist.is_initialized():
        return set()
    groups: set[Any] = {dist.group.WORLD}
    for mesh in rank.meshes.values():
        groups.update(mesh.get_all_groups())
    known = set(process_groups())
    return groups & known


def _call(rank: ProcessRank, fn: Any, args: tuple[Any, ...]) -> bytes:
    try:
        result = fn(rank, *args)
    except BaseException as error:
        kind = "exited" if isinstance(error, SystemExit) else "raised"
        text = "".join(traceback.format_exception(error))
        return pickle.dumps((kind, time.monotonic(), (type(error).__name__, str(error), text)))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        return pickle.dumps(("ok", time.monotonic(), result))
    except Exception as error:
        what = f"the result, a {type(result).__name__}, cannot be pickled: {error}"
        return pickle.dumps(("unserialisable", time.monotonic(), (type(error).__name__, what, "")))


def _redirect(path: str) -> None:
    """Send what the rank prints, also from C++, to a file of its own."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    source = os.open(os.devnull, os.O_RDONLY)
    os.dup2(source, 0)
    for stream in (1, 2):
        os.dup2(target, stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
