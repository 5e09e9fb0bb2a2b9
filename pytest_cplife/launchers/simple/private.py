"""The private torch API that launchers need, in one place, each with its reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def clear_sharding_cache() -> None:
    """Forget DTensor's cached output specs.

    They hold the device mesh that they were made with, and a mesh compares equal to one over
    other process groups: after a group is replaced, cached specs would resolve the dead one.
    """
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def fake_store() -> Any:
    """The store of the "fake" backend, on which a DTensor operation runs without any peer."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def rank_store(path: str, size: int, timeout: float) -> Any:
    """A rendezvous in a private file: no port to be taken by anybody else."""
    import torch.distributed as dist

    store = dist.FileStore(path, size)
    store.set_timeout(timedelta(seconds=timeout))
    return store


def process_groups() -> list[Any]:
    """Every process group that this process has made; there is no public list of them."""
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_map)
