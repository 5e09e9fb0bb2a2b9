"""What a call must not pass on to the next: process-wide state, saved before and put back after."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_cplife.launchers import torch_private
from pytest_cplife.seeding import seed_torch

_SEED = 20
# pytest sets this at will; to report it would be noise.
_QUIET_VARIABLES = ("PYTEST_CURRENT_TEST",)


def _set_deterministic(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


def _set_device(device: str) -> None:
    torch.set_default_device(None if device == "cpu" else device)


def _set_path(path: list[str]) -> None:
    sys.path[:] = path


def _set_filters(filters: list[Any]) -> None:
    # simplefilter tells the modules that cached which filter applied; then the list is put back.
    warnings.simplefilter("default", append=True)
    warnings.filters[:] = filters  # type: ignore[index]


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


_STATE: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (lambda: str(torch.get_default_device()), _set_device),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (_deterministic, _set_deterministic),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "working directory": (_working_directory, os.chdir),
    "sys.path": (lambda: list(sys.path), _set_path),
    "warnings filters": (lambda: list(warnings.filters), _set_filters),
}


class Hygiene:
    """The state of a rank before a call, and the way back to it."""

    def __init__(self) -> None:
        self._state = {name: get() for name, (get, _) in _STATE.items()}
        self._environment = dict(os.environ)
        self._groups = set(torch_private.group_names())

    @staticmethod
    def seed() -> None:
        """Start every random stream from the same place at every call and on every rank."""
        random.seed(_SEED)
        np.random.seed(_SEED)
        seed_torch(_SEED)
        torch_private.forget_dtensor_rng()

    def restore(self, meshes: Mapping[Any, DeviceMesh]) -> list[str]:
        """Put everything back but for groups, and say what had been changed and what was left."""
        notes = self._restore_environment()
        for name, (get, put) in _STATE.items():
            before, now = self._state[name], get()
            if now != before:
                put(before)
                if isinstance(before, list):
                    notes.append(f"{name} had been changed")
                else:
                    notes.append(f"{name} had been changed from {before} to {now}")
        leaked = self._leaked_groups(meshes)
        return notes + ([f"{len(leaked)} process group(s) had been left alive"] if leaked else [])

    def _restore_environment(self) -> list[str]:
        now = dict(os.environ)
        changed = [
            name
            for name in sorted({*now, *self._environment})
            if now.get(name) != self._environment.get(name)
        ]
        for name in changed:
            if name in self._environment:
                os.environ[name] = self._environment[name]
            else:
                del os.environ[name]
        shown = [name for name in changed if name not in _QUIET_VARIABLES]
        return [f"environment variable {name} had been changed" for name in shown]

    def _leaked_groups(self, meshes: Mapping[Any, DeviceMesh]) -> dict[str, dist.ProcessGroup]:
        kept = self._groups | torch_private.mesh_group_names(meshes.values())
        return {n: g for n, g in torch_private.group_names().items() if n not in kept}

    def destroy_leaked(self, meshes: Mapping[Any, DeviceMesh]) -> None:
        """Destroy the groups that the call has left, all but those of `meshes`.

        Not before every rank has returned from it: one that is slow may still be connecting to a
        group that this one has made and is done with.
        """
        leaked = self._leaked_groups(meshes)
        for group in leaked.values():
            dist.destroy_process_group(group)
        if leaked:
            # A mesh built next time equals the one whose groups have just gone.
            torch_private.forget_meshes()
