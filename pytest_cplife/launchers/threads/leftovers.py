"""What a call leaves behind in a rank, found and put right before the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_cplife.launchers.threads.state import SETTINGS, State

# pytest sets this at will; to report it would be noise.
_QUIET_VARIABLES = ("PYTEST_CURRENT_TEST",)


def _set_device(device: str) -> None:
    torch.set_default_device(None if device == "cpu" else device)


_THREAD_STATE: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any] | None]] = {
    "default device": (lambda: str(torch.get_default_device()), _set_device),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "inference mode": (torch.is_inference_mode_enabled, None),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), None),
}
"""What torch keeps per thread, with the way to put it back where there is one."""


class ThreadState:
    """The state that torch keeps for a rank's thread, before its first call."""

    def __init__(self) -> None:
        self._before = {name: get() for name, (get, _) in _THREAD_STATE.items()}

    def restore(self) -> tuple[list[str], bool]:
        """Put it back; what had been changed, and whether some of it cannot be put back."""
        notes, spent = [], False
        for name, (get, put) in _THREAD_STATE.items():
            before, now = self._before[name], get()
            if now == before:
                continue
            notes.append(f"{name} had been changed from {before} to {now}")
            if put is None:
                spent = True
            else:
                put(before)
        return notes, spent


def changed(before: State, after: State) -> list[str]:
    """What a rank changed of the process: its environment and its settings."""
    old, new = before["environment"], after["environment"]
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    shown = [os.fsdecode(name) for name in names if os.fsdecode(name) not in _QUIET_VARIABLES]
    return [f"environment variable {name} had been changed" for name in shown] + [
        f"{name} had been changed from {before[name]} to {after[name]}"
        for name in SETTINGS
        if before[name] != after[name]
    ]
