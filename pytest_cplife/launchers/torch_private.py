"""Every use of torch's private API by the launchers, each with its reason, for torch 2.13.

What public API offers is used elsewhere; a new torch version is checked against this file alone.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _random as dtensor_random
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_RECORDED = 512
_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")


@contextmanager
def fake_group(size: int) -> Iterator[None]:
    """A process group that talks to nobody.

    Reason: the warm-up must *run* a DTensor op, and only the fake backend can in one process; its
    store has no public name.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def forget_meshes() -> None:
    """Clear DTensor's sharding cache.

    Reason: two meshes are equal when ranks and names are, whatever their process groups. An entry
    made with a group that is destroyed by now would send its collectives there.
    """
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def forget_dtensor_rng() -> None:
    """Drop DTensor's random number tracker, which is made once per process.

    Reason: its offset would carry from one call into the next.
    """
    dtensor_random._rng_tracker = None


def group_names() -> dict[str, dist.ProcessGroup]:
    """The live process groups by name. Reason: there is no public list of them."""
    return {str(name): group for group, name in distributed_c10d._world.pg_names.items()}


def group_ranks() -> dict[str, list[int]]:
    """The global ranks of every live group by the group's name, as the recorder uses it."""
    ranks = distributed_c10d._world.pg_group_ranks
    return {name: sorted(ranks[group]) for name, group in group_names().items() if group in ranks}


class WorldStore:
    """The store of the world's group, in which every call has keys of its own.

    Reason: torch names a group that only its members make after those and the number of groups
    there are. In the next call a group of the same name would find the addresses of the last one's
    members, who are gone. The store that new groups use is public only when the world is made.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._whole: Any = None
        self._part: Any = None

    def renew(self) -> None:
        """Begin with no keys; every rank of the world does so as often as the others."""
        self._calls += 1
        group = dist.group.WORLD
        if group is None:
            return
        backend, store = distributed_c10d._world.pg_map[group]
        if store is not self._part:  # the world is new
            self._whole = store
        self._part = _distributed_c10d.PrefixStore(f"call {self._calls}", self._whole)
        distributed_c10d._world.pg_map[group] = (backend, self._part)


def mesh_group_names(meshes: Iterable[DeviceMesh]) -> set[str]:
    """Names of the groups that `meshes` use, those of their flattened forms included.

    Reason: a flattened mesh is kept by its root. If its group were destroyed after a call, the next
    call would get the mesh back without the group.
    """
    names: set[str] = set()
    for mesh in meshes:
        names.update(str(name) for name in getattr(mesh, "_dim_group_names", ()))
        names |= mesh_group_names(getattr(mesh, "_flatten_mapping", {}).values())
    return names


def limit_recorders(environ: MutableMapping[str, str]) -> None:
    """Have recorders that are still to be made keep `_RECORDED` entries, unless the user says how
    many. Reason: each end of a call reads them all."""
    environ.setdefault(_SIZE_VARIABLE, str(_RECORDED))


def open_recorder() -> None:
    """Have gloo's flight recorder made now, with room for `_RECORDED` entries.

    Reason: it reads its size from the environment when it is made, which is at the first group of
    the process otherwise. A larger one costs every call that has to read it.
    """
    given = os.environ.get(_SIZE_VARIABLE)
    limit_recorders(os.environ)
    try:
        _dumped(_RECORDERS[0], includeCollectives=False)
    finally:
        if given is None:
            del os.environ[_SIZE_VARIABLE]


def flight_records() -> dict[str, list[dict[str, Any]]]:
    """The collectives that this process has entered, oldest first, by torch's flight recorders.

    NCCL has one of its own, in builds that have NCCL. The numbers ``record_id`` count the entries
    of each from the start of the process, a parent's that has forked it included. Reason: only the
    recorders see collectives on a bare backend, and their dumps have no public names. They may be
    called from any thread while another is blocked inside a collective.
    """
    return {name: _dumped(name, includeStackTraces=False).get("entries", []) for name in _found()}


def recorder_status() -> dict[tuple[str, str], tuple[int, int]]:
    """The numbers of the last collectives that were entered and completed; cheap, unlike records.

    Its groups are numbered in the order in which the process made them, which says nothing about
    their names.
    """
    return {
        (name, group): (
            int(status["last_enqueued_collective"]),
            int(status["last_completed_collective"]),
        )
        for name in _found()
        for group, status in _dumped(name, includeCollectives=False).get("pg_status", {}).items()
    }


def _found() -> list[str]:
    return [name for name in _RECORDERS if hasattr(_distributed_c10d, name)]


def _dumped(recorder: str, **options: bool) -> dict[str, Any]:
    # Pickled by torch; its JSON takes twice as long.
    dumped: dict[str, Any] = pickle.loads(getattr(_distributed_c10d, recorder)(**options))
    return dumped


def cuda_is_initialised() -> bool:
    """Whether this process holds a CUDA context, without making one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def file_store(path: str, size: int) -> Any:
    """A store in a file. Reason: public, but `torch.distributed` does not declare the name."""
    return _distributed_c10d.FileStore(path, size)


def tcp_store(host: str, port: int, *, serve: bool, timeout: timedelta) -> Any:
    """A store that one process serves and others use over the network. Reason: as above."""
    return _distributed_c10d.TCPStore(
        host, port, is_master=serve, timeout=timeout, wait_for_workers=False
    )


def compare_collectives() -> None:
    """Compare collectives over the ranks before each. Reason: as for `file_store`."""
    _distributed_c10d.set_debug_level(_distributed_c10d.DebugLevel.DETAIL)
