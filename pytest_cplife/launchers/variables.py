"""The environment variables that tell a process which rank it is, as torchrun sets them."""

from __future__ import annotations

import os

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.messages import PoolSpec

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


def set_environment(base: dict[str, str], rank: int, spec: PoolSpec) -> None:
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
