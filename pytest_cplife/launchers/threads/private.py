"""Every use of torch's private API by the launcher ``threads``, each with its reason.

The launcher makes ranks out of threads, which torch does not offer: what torch keeps once per
process (groups by name, meshes as cache keys, gloo's place in ``init_process_group``) has to be
kept once per rank. :func:`check_torch` says what is missing where a version of torch has moved it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    HashStore,
    ProcessGroupGloo,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
)
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BroadcastOptions",
    "GatherOptions",
    "RankWorld",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Store",
    "check_torch",
]
TESTED = "2.13"
# Of an operation that all members have called: gloo only has to move the bytes.
_GLOO_TIMEOUT = timedelta(minutes=2)
_C10D = "torch.distributed.distributed_c10d"
_NEEDED = (
    (_C10D, "_World", "each rank has its own groups"),
    (_C10D, "_world", "each rank has its own groups"),
    (_C10D, "ProcessGroupGloo", "a rank that waits in a collective lets others run"),
    (_C10D, "rendezvous", "ranks that initialise the group themselves meet without a port"),
    (_C10D, "_new_process_group_helper", "messages name the ranks of a group that is being made"),
    ("torch._C._distributed_c10d", "_register_process_group", "groups are found by name"),
    ("torch._C._distributed_c10d", "_unregister_process_group", "groups are found by name"),
    ("torch.distributed", "ProcessGroupGloo.create_device", "groups connect inside the process"),
    ("torch.distributed", "ProcessGroupGloo._Options", "groups connect inside the process"),
    ("torch.distributed.device_mesh", "DeviceMesh._hash_key", "ranks never share cached meshes"),
    ("torch.distributed.tensor.debug", "_clear_sharding_prop_cache", "old meshes are forgotten"),
    ("torch.distributed.tensor._random", "_rng_tracker", "each rank has its own tracker"),
    ("torch.distributed.tensor", "DTensor._op_dispatcher", "loss_parallel() is per rank"),
)


def check_torch() -> None:
    """Raise where this torch lacks something that the launcher needs.

    Raises:
        RuntimeError: it says what is missing, what for, and which versions were tested.
    """
    missing = [
        f"{module}.{name} (so that {reason})"
        for module, name, reason in _NEEDED
        if not _exists(module, name)
    ]
    if missing:
        raise RuntimeError(
            f"launcher 'threads' needs private parts of torch that torch {torch.__version__} "
            f"does not have: {'; '.join(missing)}. It was tested with torch {TESTED}; the launcher "
            "'processes' needs none of this"
        )


def _exists(module: str, name: str) -> bool:
    try:
        functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


class RankWorld(c10d._World):
    """What `torch.distributed` knows about groups, for one rank.

    Reason: torch's own keeps most of it in module globals.
    """

    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    group_count: Any = 0
    tags_to_pg: Any = None
    pg_to_tag: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.pg_map = {}
        self.pg_names = {}
        self.pg_group_ranks = {}
        self.pg_backend_config = {}
        self.tags_to_pg = {}
        self.pg_to_tag = {}


class Groups:
    """The groups of the rank that runs: an aspect of the process, see `state`.

    Reason: there is one world in `distributed_c10d` and one registry of names, which functional
    collectives ask. torch can keep the registry per thread, but then a second thread of a rank
    would not find the rank's groups.
    """

    def fresh(self, host: c10d._World) -> c10d._World:
        return RankWorld()

    def read(self) -> c10d._World:
        """The world of the rank that runs, whose names go out of the registry."""
        for name in c10d._world.pg_names.values():
            _distributed_c10d._unregister_process_group(name)
        return c10d._world

    def write(self, world: c10d._World) -> None:
        # A rank that lost its turn at a deadline has left its names behind.
        self.read()
        c10d._world = world
        for group, name in world.pg_names.items():
            _distributed_c10d._register_process_group(name, group)


@functools.cache
def _gloo_device(process: int) -> Any:
    """One for all groups, each with connections of its own, for the life of the process."""
    return ProcessGroupGloo.create_device(hostname="127.0.0.1")


def connect_gloo(size: int) -> list[Any]:
    """Real gloo for all members of a group at once.

    Reason: the constructor blocks until all have called it, so each has a helper thread; and only
    these options say that one device and one thread per member are enough.
    """
    store, device = HashStore(), _gloo_device(os.getpid())
    members: list[Any] = [None] * size
    errors: list[Exception] = []

    def join(rank: int) -> None:
        try:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = _GLOO_TIMEOUT
            options._devices = [device]
            options._threads = 1
            members[rank] = ProcessGroupGloo(store, rank, size, options)
        except Exception as error:
            errors.append(error)

    helpers = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(size)]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return members


def discard_gloo(members: list[Any], failed: Sequence[int]) -> None:
    """Let go of members that may still wait for the `failed` ones, without waiting for them.

    Reason: a member ends its operation before it goes. Those that have none go first; that closes
    their connections, which ends the others' operations.
    """

    def let_go() -> None:
        for rank in (*failed, *range(len(members))):
            members[rank] = None

    # Not a daemon: at the interpreter's end it would be cut off inside a destructor.
    threading.Thread(target=let_go).start()


def ranks_of_new_group(size: int) -> Sequence[int] | None:
    """The global ranks of the group that is being made, for messages; None if unknown.

    Reason: a backend is not told them.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is c10d._new_process_group_helper.__code__:
            ranks = frame.f_locals.get("global_ranks_in_group")
            return list(ranks) if ranks else list(range(size))
    return None


def destroy_groups(kept: dist.ProcessGroup | None) -> int:
    """Destroy the current rank's groups except `kept`; how many there were."""
    others = [group for group in c10d._world.pg_names if group is not kept]
    for group in others:
        dist.destroy_process_group(group)
    return len(others)


def group_names() -> dict[Any, str]:
    """Names of the current rank's groups."""
    return dict(c10d._world.pg_names)


def mesh_groups(meshes: Sequence[DeviceMesh]) -> set[str]:
    """Names of the groups that `meshes` use, those of their flattened forms included.

    Reason: a root keeps its flattened meshes, which a later call gets back.
    """
    names: set[str] = set()
    for mesh in meshes:
        names.update(map(str, getattr(mesh, "_dim_group_names", ())))
        names |= mesh_groups(list(getattr(mesh, "_flatten_mapping", {}).values()))
    return names


def forget_shardings() -> None:
    """Clear this thread's cache of sharding decisions.

    Reason: its entries keep meshes alive whose groups are gone.
    """
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def cooperative(
    group: type,
    store: Callable[[], Store],
    mark: Callable[[], int],
    start_thread: Callable[[threading.Thread], None],
) -> Iterator[None]:
    """Make `torch.distributed` use cooperative groups while ranks run.

    Args:
        group: what takes the place of gloo's class. Reason: a backend that is registered under a
            name of its own would leave ``new_group(backend="gloo")`` to block the turn.
        store: the current rank's store, for ranks that initialise the group themselves.
        mark: distinguishes the meshes of ranks and worlds. Reason: two meshes are equal when
            ranks and names are, and torch caches by mesh; a rank would get another's shard sizes.
        start_thread: starts a thread for the current rank.
    """

    def meet(
        url: str, rank: int = -1, world_size: int = -1, **options: Any
    ) -> Iterator[tuple[Store, int, int]]:
        ranks = int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
        yield store(), int(os.environ["RANK"]) if rank < 0 else rank, ranks

    initialise = DeviceMesh.__init__

    @functools.wraps(initialise)
    def initialise_marked(mesh: Any, *args: Any, **kwargs: Any) -> None:
        initialise(mesh, *args, **kwargs)
        mesh._thread_id = mark()
        mesh._hash = None

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (c10d, "ProcessGroupGloo", group),
            (c10d, "rendezvous", meet),
            (DeviceMesh, "__init__", initialise_marked),
            (threading.Thread, "start", lambda thread: start_thread(thread)),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def slots() -> list[tuple[object, str, Callable[[Any], Any]]]:
    """Attributes that torch keeps once per process and a rank may change: owner, name, first value.

    Reason: hooks for all modules or optimizers, DTensor's random number tracker and the tables
    that ``loss_parallel()`` and ``context_parallel()`` edit are meant for one rank.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import _random as dtensor_random
    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = [
        (owner, name, lambda value: value.copy() if isinstance(value, dict) else value)
        for owner in (module, optimizer)
        for name in vars(owner)
        if name.startswith("_global_") and isinstance(vars(owner)[name], dict | bool | None)
    ]
    return [
        *hooks,
        (dtensor_random, "_rng_tracker", lambda _: None),
        (DTensor._op_dispatcher, "_custom_op_handlers", dict),
        (torch.nn.functional, "scaled_dot_product_attention", lambda value: value),
        (c10d, "_backend", lambda value: value),
        (c10d, "_default_pg_init_method", lambda value: value),
    ]
