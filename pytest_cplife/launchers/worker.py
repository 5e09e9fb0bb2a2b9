"""The life of one rank: join the world, then serve calls until the parent closes the channel."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.hygiene import Hygiene
from pytest_cplife.launchers.messages import Call, Failed, PoolSpec, Ready, Returned
from pytest_cplife.launchers.recorder import Op, Recorder
from pytest_cplife.launchers.watcher import Watcher, remove_folder
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
# What starts tasks says more about them than is set for a rank here, and it would contradict.
_OF_THE_STARTER = (
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
)
# The parent's deadline ends a call. The group's own timeout would end it earlier and say less.
_GROUP_TIMEOUT = timedelta(days=1)
_STORE_TIMEOUT = timedelta(minutes=2)


# What a rank cannot do because of what the pytest process had done before it forked the rank.
_INHERITED = {
    "Cannot re-initialize CUDA in forked subprocess": (
        "the pytest process had used CUDA before it forked this rank. A test module or a conftest "
        "may have; torch.cuda.is_available() counts as use unless the environment has "
        "PYTORCH_NVML_BASED_CUDA_CHECK=1, which --cplife-device=cuda sets"
    ),
    "Unable to handle autograd's threading in combination with fork": (
        "the pytest process had computed gradients before it forked this rank, after which torch "
        "computes none in it where there is a GPU. Run tests that do so in a pytest of their own, "
        "or on a rank"
    ),
}
# How long a rank gives a collective that was not waited for before it calls its world spent.
_SETTLE_SECONDS = 0.2


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
        _set_environment(base, rank, spec)
        me = _join(rank, spec, control)
        if me is not None:
            _serve_calls(me, spec, control, base, recorder)
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


def _set_environment(base: dict[str, str], rank: int, spec: PoolSpec) -> None:
    """The environment `base` with this rank's variables in it."""
    values = {k: v for k, v in base.items() if not k.startswith("TORCHELASTIC_")}
    for name in (*RANK_VARIABLES, *_OF_THE_STARTER):
        values.pop(name, None)
    if not spec.serial:
        place = spec.place(rank)
        numbers = (rank, place.local_rank, spec.size, place.local_size, place.node)
        values.update(zip(RANK_VARIABLES[:5], map(str, numbers), strict=True))
        values["MASTER_ADDR"] = spec.master_addr
        values["MASTER_PORT"] = str(spec.master_port)
    torch_private.limit_recorders(values)
    if spec.detail:
        values["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    if values != dict(os.environ):
        os.environ.clear()
        os.environ.update(values)


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
        control.send_object(_failed("raised", error), None)
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


def _serve_calls(
    me: ForkedRank,
    spec: PoolSpec,
    control: Channel,
    inherited: dict[str, str],
    recorder: Recorder,
) -> None:
    while True:
        call: Call = control.receive_object(None)
        os.truncate(spec.log(me.rank), 0)  # the failure of a call shows what was printed in it
        sys.path[:] = call.sys_path
        os.chdir(call.cwd)
        wanted = {**(inherited if call.changes_only else {}), **call.environment}
        present = {name: value for name, value in wanted.items() if value is not None}
        _set_environment(present, me.rank, spec)
        control.send_object(_answer(me, spec, call, recorder), None)


def _answer(me: ForkedRank, spec: PoolSpec, call: Call, recorder: Recorder) -> Returned | Failed:
    hygiene = Hygiene()
    hygiene.seed()
    recorder.mark()
    try:
        fn: Callable[..., Any]
        fn, args = pickle.loads(call.payload)
        result = fn(me, *args)
        if me.device.type == "cuda":
            # What fails or hangs on the device belongs to this call, not to the next.
            torch.cuda.synchronize(me.device)
    except SystemExit as error:
        return _failed("exited", error, message=f"sys.exit({error.code!r}) during the call")
    except BaseException as error:
        return _failed("raised", error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        payload = pickle.dumps(result)
    except Exception as error:
        kind = type(result).__name__
        return _failed(
            "unserialisable", error, message=f"the result, a {kind}, cannot be sent: {error}"
        )
    ops = _entered(recorder)
    if any(op.pending for op in ops):
        # Whether it can complete is seen when every rank is back. No group may be destroyed now.
        return Returned(payload, ("a collective was not waited for",), ops, spent=True)
    if spec.grouped and not dist.is_initialized():
        return Returned(payload, ("the world's process group had been destroyed",), ops, spent=True)
    notes = hygiene.restore(me.meshes)
    return Returned(payload, tuple(notes), ops, spent=False)


def _entered(recorder: Recorder) -> tuple[Op, ...]:
    """The collectives of the call, after those that nobody waited for had time to complete."""
    end = time.monotonic() + _SETTLE_SECONDS
    while True:
        ops = recorder.since_mark()
        if time.monotonic() > end or not any(op.pending for op in ops):
            return ops
        time.sleep(0.01)


def _failed(kind: Any, error: BaseException, message: str | None = None) -> Failed:
    """A failure in words alone: the exception itself may not survive the journey."""
    try:
        text = str(error) if message is None else message
    except Exception:
        text = "(the exception has no readable message)"
    hints = [hint for words, hint in _INHERITED.items() if words in text]
    return Failed(
        kind=kind,
        type_name=type(error).__name__,
        message="\n  ".join([text, *hints]),
        traceback="".join(traceback.format_exception(type(error), error, _beyond_us(error))),
        moment=time.monotonic(),
    )


def _beyond_us(error: BaseException) -> TracebackType | None:
    """The traceback from the called function on."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        return trace.tb_next
    return trace
