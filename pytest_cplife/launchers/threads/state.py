"""What a process has once and every rank needs for itself: read and written at each hand-over.

An *aspect* of the process can be read, written, and given the value that a rank starts with.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from pytest_cplife.launchers.threads import private
from pytest_cplife.launchers.threads.streams import (
    CudaStreams,
    NumpyStream,
    PythonStream,
    TorchStream,
)


class Aspect(Protocol):
    """One piece of process-wide state."""

    def fresh(self, host: Any) -> Any:
        """What a rank starts with, given what pytest's own thread has."""
        ...

    def read(self) -> Any: ...

    def write(self, value: Any) -> None: ...


class Setting:
    """A setting with a getter and a setter; the setter runs only where it makes a difference."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self.read = get
        self._put = put

    def fresh(self, host: Any) -> Any:
        return host

    def write(self, value: Any) -> None:
        if self.read() != value:
            self._put(value)


class Slots:
    """Attributes of modules and objects that are exchanged by identity."""

    def __init__(self, slots: Sequence[tuple[object, str, Callable[[Any], Any]]]) -> None:
        self._slots = slots

    def fresh(self, host: Sequence[Any]) -> list[Any]:
        return [first(value) for (_, _, first), value in zip(self._slots, host, strict=True)]

    def read(self) -> list[Any]:
        return [getattr(owner, name) for owner, name, _ in self._slots]

    def write(self, values: Sequence[Any]) -> None:
        for (owner, name, _), value in zip(self._slots, values, strict=True):
            setattr(owner, name, value)


class Environment:
    """The environment variables. Only the differences are written, each through `os.environ`."""

    def __init__(self) -> None:
        # The mapping under `os.environ`: reading it costs microseconds less per variable.
        self._raw: Mapping[Any, Any] = vars(os.environ).get("_data", os.environ)

    def fresh(self, host: Mapping[Any, Any]) -> Mapping[Any, Any]:
        return host

    def read(self) -> dict[Any, Any]:
        return dict(self._raw)

    def write(self, value: Mapping[Any, Any]) -> None:
        if value == self._raw:
            return
        for name in [name for name in self._raw if name not in value]:
            del os.environ[os.fsdecode(name)]
        for name, text in value.items():
            if self._raw.get(name) != text:
                os.environ[os.fsdecode(name)] = os.fsdecode(text)


def _same(value: Any) -> Any:
    return value


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return os.sep


def _python_slots() -> list[tuple[object, str, Callable[[Any], Any]]]:
    """Of the interpreter: redirected output, warning filters, the import path."""
    return [
        (sys, "stdout", _same),
        (sys, "stderr", _same),
        (sys, "excepthook", _same),
        (sys, "path", list),
        (sys, "argv", list),
        (warnings, "filters", list),
        (warnings, "showwarning", _same),
    ]


SETTINGS: Mapping[str, Setting] = {
    "default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "deterministic algorithms": Setting(_deterministic, _set_deterministic),
    "matmul precision": Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "working directory": Setting(_folder, os.chdir),
}
"""Settings by the name that notes use."""


State = dict[str, Any]
"""A value for each aspect, by its name."""


class ProcessState:
    """All aspects together."""

    def __init__(self) -> None:
        self._aspects: dict[str, Aspect] = {
            "groups": private.Groups(),
            "environment": Environment(),
            "torch stream": TorchStream(),
            "CUDA streams": CudaStreams(),
            "NumPy stream": NumpyStream(),
            "Python stream": PythonStream(),
            "slots": Slots([*_python_slots(), *private.slots()]),
            **SETTINGS,
        }

    def read(self) -> State:
        return {name: aspect.read() for name, aspect in self._aspects.items()}

    def write(self, values: State) -> None:
        for name, aspect in self._aspects.items():
            aspect.write(values[name])

    def fresh(self, host: State, groups: Any, variables: Mapping[str, str | None]) -> State:
        """What a rank starts a call with: pytest's state, the rank's own groups and variables."""
        values = {name: aspect.fresh(host[name]) for name, aspect in self._aspects.items()}
        environment = dict(values["environment"])
        for name, text in variables.items():
            environment.pop(os.fsencode(name), None)
            if text is not None:
                environment[os.fsencode(name)] = os.fsencode(text)
        return {**values, "groups": groups, "environment": environment}
