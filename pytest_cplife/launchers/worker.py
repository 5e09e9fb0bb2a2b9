"""The life of one rank: join the world, then serve calls until the parent closes the channel."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import traceback
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.messages import PoolSpec, Ready
from pytest_cplife.launchers.recorder import Recorder
from pytest_cplife.launchers.service import Service, failed
from pytest_cplife.launchers.variables import set_environment
from pytest_cplife.launchers.watcher import Watcher, remove_folder
from pytest_cplife.mesh import MeshSpec

# The parent's deadline ends a call. The group's own timeout would end it earlier and say less.
_GROUP_TIMEOUT = timedelta(days=1)
_STORE_TIMEOUT = timedelta(minutes=2)


class ForkedRank:
    """The rank as the called function sees it; see :class:`pytest_cplife.launchers.base.Rank`."""

    own_process = True

    def __init__(self, rank: int, spec: PoolSpec) -> None:
        self.rank = rank
        self.world_size = spec.size
        self.serial = spec.serial
        self.device = _device(spec.place(rank).local_rank, spec.device)
        self.meshes: dict[MeshSpec, DeviceMesh] = {}

    def mesh(self, spec: MeshSpec) -> DeviceMesh:
        """The mesh of `spec`, made once per world."""
        if self.serial:
            raise RuntimeError(f"a serial world has no mesh {spec.option!r}")
        if spec.world_size != self.world_size:
            raise RuntimeError(
                f"mesh {spec.option!r} needs {spec.world_size} ranks; this world has "
                f"{self.world_size}"
            )
        if not dist.is_initialized():
            raise RuntimeError(f"there is no process group to make the mesh {spec.option!r} from")
        if spec not in self.meshes:
            self.meshes[spec] = init_device_mesh(
                self.device.type, spec.shape, mesh_dim_names=spec.names
            )
        return self.meshes[spec]


def serve(rank: int, spec: PoolSpec, control: Channel, watch: Channel, parent: int) -> NoReturn:
    """Be rank `rank` until the parent goes away. Runs in the forked process and never returns."""
    status = 1
    try:
        _become_a_rank(rank, spec)
        recorder = Recorder()
        Watcher(watch, parent, spec.folder, recorder).start()
        base = dict(os.environ)
        set_environment(base, rank, spec)
        me = _join(rank, spec, control)
        if me is not None:
            Service(me, spec, recorder).serve(control, base)
        status = 0
    except EOFError:
        # The parent is gone. This thread may end the process before the watcher has noticed.
        remove_folder(spec.folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: what pytest has registered to run at exit is the parent's business.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become_a_rank(rank: int, spec: PoolSpec) -> None:
    """Leave the parent's terminal, output, signal handlers and thread pool behind."""
    # A session of its own: one signal ends the rank with whatever it has started, and an
    # interrupt at the terminal reaches only pytest, which then ends the ranks.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(spec.log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(fd, mode, buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.enable(file=log, all_threads=True)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    torch.set_num_threads(1)


def _join(rank: int, spec: PoolSpec, control: Channel) -> ForkedRank | None:
    """Make the process group, where there is to be one, and report for service."""
    try:
        me = ForkedRank(rank, spec)
        if spec.detail:
            torch_private.compare_collectives()
        if me.device.type == "cuda":
            torch.cuda.set_device(me.device)
        if spec.grouped:
            dist.init_process_group(
                spec.backend,
                rank=rank,
                world_size=spec.size,
                store=_store(rank, spec),
                timeout=_GROUP_TIMEOUT,
            )
    except Exception as error:
        control.send_object(failed("raised", error), None)
        return None
    control.send_object(Ready(), None)
    return me


def _store(rank: int, spec: PoolSpec) -> Any:
    """Where the ranks find each other: a file where they share a machine, rank 0 otherwise."""
    if not spec.store_port:
        return torch_private.file_store(f"{spec.folder}/store", spec.size)
    return torch_private.tcp_store(
        spec.master_addr, spec.store_port, serve=rank == 0, timeout=_STORE_TIMEOUT
    )


def _device(local_rank: int, kind: str) -> torch.device:
    if kind == "cuda":
        return torch.device("cuda", local_rank % max(torch.cuda.device_count(), 1))
    return torch.device(kind)
