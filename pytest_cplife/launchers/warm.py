"""Prepare the parent for forking: everything the ranks need is loaded once, before there are any.

A DTensor op imports some 300 modules when it first runs; a rank forked from a parent that has run
one starts about seven times faster than one forked from a parent that has only imported torch.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.collecting import uncollected

_warm = False


def check_parent() -> None:
    """Refuse to fork from a process whose children would not work.

    Raises:
        RuntimeError: the process has initialised CUDA or has a live process group.
    """
    if torch_private.cuda_is_initialised():
        raise RuntimeError(
            "the pytest process has initialised CUDA, so ranks forked from it cannot use it. Look "
            "for a CUDA call at import time, in a conftest or in an earlier test; the adapter "
            "should touch the device only in start()"
        )
    if dist.is_initialized():
        raise RuntimeError(
            "the pytest process has a live process group, which forked ranks would inherit; "
            "an earlier test or a conftest must call torch.distributed.destroy_process_group()"
        )


def warm_parent() -> None:
    """Run one DTensor op on a fake group and leave nothing of it behind."""
    global _warm
    check_parent()
    if _warm:
        return
    torch_private.open_recorder()
    # Whatever the user's tests have set must not fail the warm-up, nor may it be changed by it.
    with (
        uncollected(),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        torch_private.fake_group(2),
    ):
        warnings.simplefilter("ignore")
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("warm",))
        a = distribute_tensor(torch.ones(4, 4, device="cpu"), mesh, [Shard(0)])
        b = distribute_tensor(torch.ones(4, 4, device="cpu"), mesh, [Shard(1)])
        product = a @ b
        assert isinstance(product, DTensor)
        product.redistribute(mesh, [Replicate()])
        a.full_tensor()
        # No backward: where there is a GPU it starts threads, and torch then refuses a backward in
        # every process forked from this one.
    # Its entries hold the fake group's mesh, which equals any real mesh over the same ranks.
    torch_private.forget_meshes()
    torch_private.forget_dtensor_rng()
    _warm = True
