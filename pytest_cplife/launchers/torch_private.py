"""Every use of torch's private API by the launchers, each with its reason, for torch 2.13.

What public API offers is used elsewhere; a new torch version is checked against this file alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
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


def open_recorder() -> None:
    """Have torch's flight recorder made now, with room for `_RECORDED` entries.

    Reason: it reads its size from the environment when it is made, which is at the first group of
    the process otherwise. A larger one costs every call that has to read it.
    """
    given = os.environ.get(_SIZE_VARIABLE)
    os.environ.setdefault(_SIZE_VARIABLE, str(_RECORDED))
    try:
        recorder_status()
    finally:
        if given is None:
            del os.environ[_SIZE_VARIABLE]


def flight_record() -> list[dict[str, Any]]:
    """The collectives that this process has entered, by torch's flight recorder, oldest first.

    Those that a parent had entered before it forked this process are among them; ``record_id``
    counts them all. Reason: only the recorder sees collectives on a bare backend, and its dump has
    no public name. It may be called from any thread while another is blocked inside a collective.
    """
    dump = _distributed_c10d._dump_fr_trace_json  # type: ignore[attr-defined]
    entries: list[dict[str, Any]] = json.loads(dump()).get("entries", [])
    return entries


def recorder_status() -> dict[str, Any]:
    """What changes whenever a collective is entered; cheap, unlike the record.

    Its groups are numbered in the order in which the process made them, which says nothing about
    their names.
    """
    dump = _distributed_c10d._dump_fr_trace_json  # type: ignore[attr-defined]
    status = json.loads(dump(includeCollectives=False)).get("pg_status", {})
    return {number: group["last_enqueued_collective"] for number, group in status.items()}


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
