"""Warming the parent, so that forked ranks start with torch loaded and used.

The first DTensor operation of a process imports some three hundred modules; forked from a
parent that has run one, a rank's first operation costs a sixth.
"""

from __future__ import annotations

import os

_BUFFER = "TORCH_FR_BUFFER_SIZE"
_warm = False


def warm_up() -> None:
    """Run one DTensor operation on a fake process group, once per process, and leave no trace.

    A parent that has a process group of its own is left alone; its ranks then start colder.

    Raises:
        RuntimeError: CUDA is initialised here, and would be broken in every forked rank.
    """
    global _warm
    import torch
    import torch.distributed as dist

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "CUDA is initialised in the pytest process, so no rank can be forked from it: make the"
            " import of your adapter's module (and conftest.py) touch no device"
        )
    if _warm or dist.is_initialized():
        return
    _warm = True
    state = torch.get_rng_state()
    before = os.environ.get(_BUFFER)
    # The flight recorder reads its size when the first group of a process tree is made.
    os.environ.setdefault(_BUFFER, "512")
    try:
        _one_operation()
    finally:
        torch.set_rng_state(state)
        if before is None:
            del os.environ[_BUFFER]


def _one_operation() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor

    from pytest_cplife.launchers.simple.private import clear_sharding_cache, fake_store

    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("warm",))
        weight = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).requires_grad_()
        (weight @ weight).sum().backward()  # type: ignore[no-untyped-call]
        weight.full_tensor()
    finally:
        dist.destroy_process_group()
        clear_sharding_cache()
