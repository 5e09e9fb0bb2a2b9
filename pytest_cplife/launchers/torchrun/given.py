"""What torchrun or SLURM says about the process that it started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_TORCHRUN = "torchrun"
_SLURM = "SLURM"
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?([^,\[]*)")


@dataclass(frozen=True, slots=True)
class Given:
    """One of the processes that were started together.

    Attributes:
        starter: who started them, for messages.
        rank, world_size: among all of them.
        node: the number of the node that this one runs on.
        host, port: where all of them can meet.
        store_is_served: torchrun itself serves a store there.
        attempt: how often torchrun has started them anew.
    """

    starter: str
    rank: int
    world_size: int
    node: int
    host: str
    port: int
    store_is_served: bool = False
    attempt: str = "0"


def given(environment: Mapping[str, str] = os.environ) -> Given | None:
    """What the environment says; None where nothing has started this process beside others.

    Raises:
        ValueError: it says only a part of what is needed.
    """
    if "RANK" in environment:
        return _from_torchrun(environment)
    if "SLURM_PROCID" in environment:
        return _from_slurm(environment)
    return None


def _from_torchrun(environment: Mapping[str, str]) -> Given:
    return Given(
        starter=_TORCHRUN,
        rank=_number(environment, "RANK"),
        world_size=_number(environment, "WORLD_SIZE"),
        node=_number(environment, "GROUP_RANK", "0"),
        host=_text(environment, "MASTER_ADDR"),
        port=_number(environment, "MASTER_PORT"),
        store_is_served=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _from_slurm(environment: Mapping[str, str]) -> Given:
    # One job may run several steps at a time, and several jobs share a node.
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = 20000 + (job * 16 + step) % 20000
    return Given(
        starter=_SLURM,
        rank=_number(environment, "SLURM_PROCID"),
        world_size=_number(environment, "SLURM_NTASKS"),
        node=_number(environment, "SLURM_NODEID", "0"),
        host=environment.get("MASTER_ADDR") or _first_host(environment),
        port=_number(environment, "MASTER_PORT", str(port)),
    )


def _first_host(environment: Mapping[str, str]) -> str:
    """The first of ``node[03-07,11],other``; tasks are numbered from there."""
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    found = _FIRST_HOST.match(hosts)
    return "127.0.0.1" if found is None else "".join(part or "" for part in found.groups())


def _text(environment: Mapping[str, str], name: str, default: str = "") -> str:
    found = environment.get(name) or default
    if not found:
        raise ValueError(f"the variable {name} is not set beside the others of {_TORCHRUN}")
    return found


def _number(environment: Mapping[str, str], name: str, default: str = "") -> int:
    found = _text(environment, name, default)
    if not found.isdecimal():
        raise ValueError(f"the variable {name} is {found!r}; a whole number is expected")
    return int(found)
