"""What travels to the ranks for one test: where its body is found, and the values it is given."""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec

_here = threading.local()


class MeshOnRanks:
    """Stands for the marker's mesh in the pytest process; each rank gets its own mesh instead.

    It may lie inside other values: unpickled on a rank, it is the mesh.
    """

    def __init__(self, spec: MeshSpec) -> None:
        self._spec = spec

    def __reduce__(self) -> tuple[Callable[[MeshSpec], Any], tuple[MeshSpec]]:
        return mesh_here, (self._spec,)

    def __repr__(self) -> str:
        return f"<mesh {self._spec.option} of the ranks>"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"cplife_mesh.{name}: the mesh exists only on the ranks, where the test's body runs; "
            "a fixture can pass it on but not use it"
        )


def mesh_here(spec: MeshSpec) -> Any:
    """The mesh of `spec` on the rank that is unpickling."""
    rank: Rank = _here.rank
    return rank.mesh(spec)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A test's body and its arguments.

    Attributes:
        module, name: where a rank finds the function; a method is found on `self`, see `values`.
        function: the function itself, where ranks are threads.
        values: pickled arguments by name; ``self`` is the instance of a test class.
        shared: arguments that cannot be pickled, where ranks are threads.
        fresh: arguments that each rank makes for itself.
    """

    module: str
    name: str
    function: Callable[..., Any] | None = None
    values: Mapping[str, bytes] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()

    def open(self, rank: Rank) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The function and its arguments, on the rank."""
        _here.rank = rank
        values = dict(self.shared)
        for name, payload in self.values.items():
            try:
                values[name] = pickle.loads(payload)
            except Exception as error:
                raise RuntimeError(
                    f"fixture {name!r} was sent but cannot be read on the rank: "
                    f"{type(error).__name__}: {error}"
                ) from error
        owner = values.pop("self", None)
        if self.function is not None:
            # A bound method would bring the instance that all ranks share.
            function = getattr(self.function, "__func__", self.function)
            return (function if owner is None else function.__get__(owner)), values
        if owner is None:
            owner = sys.modules.get(self.module) or importlib.import_module(self.module)
        return getattr(owner, self.name), values


def pack(item: pytest.Function, *, threads: bool) -> Parcel:
    """The parcel of `item`, whose fixtures have been set up.

    Raises:
        pytest.fail.Exception: a fixture's value or the function cannot be sent to other processes.
    """
    names = item._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: item.funcargs[name] for name in names}
    if item.instance is not None:
        arguments["self"] = item.instance
    values: dict[str, bytes] = {}
    shared: dict[str, Any] = {}
    fresh: list[str] = []
    for name, value in arguments.items():
        if isinstance(value, pytest.MonkeyPatch):
            # What it patches on a rank has to be undone there; threads have one and the same.
            if threads:
                shared[name] = value
            else:
                fresh.append(name)
            continue
        payload, problem = _pickled(value)
        if not problem:
            values[name] = payload
        elif threads:
            shared[name] = value
        else:
            _refuse(name, value, problem)
    module: str = item.module.__name__
    name = item.originalname
    if not threads and item.instance is None and getattr(item.module, name, None) is None:
        pytest.fail(
            f"the ranks cannot find the test: module {module} has no attribute {name!r}. "
            "Use a function at the top level of the module, or --cplife-launcher=threads",
            pytrace=False,
        )
    function = item.obj if threads else None
    return Parcel(module, name, function, values, shared, tuple(fresh))


def _pickled(value: object) -> tuple[bytes, str]:
    """The value, pickled, or why it cannot be."""
    try:
        return pickle.dumps(value), ""
    except Exception as error:
        return b"", f"{type(error).__name__}: {error}"


def _refuse(name: str, value: object, problem: str) -> NoReturn:
    what = "the test's instance" if name == "self" else f"fixture {name!r}"
    pytest.fail(
        f"{what}, a {type(value).__name__}, cannot be sent to the ranks: {problem}\n"
        "Make it in the test's body, which runs on every rank, or use --cplife-launcher=threads, "
        "where ranks share the objects of the pytest process",
        pytrace=False,
    )
