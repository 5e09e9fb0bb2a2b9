"""The launcher ``processes``: persistent pools of forked ranks on real gloo or NCCL."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_cplife.launchers import calls
from pytest_cplife.launchers.base import Launcher, World, WorldFailure
from pytest_cplife.launchers.messages import Call
from pytest_cplife.launchers.pool import Pool
from pytest_cplife.launchers.rerun import explained, needs_rerun
from pytest_cplife.launchers.served import ServedPool
from pytest_cplife.launchers.warm import check_parent, warm_parent

_START_SECONDS = 120.0
_RERUN_SECONDS = 30.0


class ProcessWorld(World):
    """A world whose pool is made at the first call and replaced after any that failed."""

    def __init__(
        self, size: int, *, device: str, backend: str, timeout: float, serial: bool, bare: bool
    ) -> None:
        self.size = size
        self._timeout = timeout
        self._device = device
        self._backend = backend
        self._serial = serial
        self._bare = bare
        self._pool: ServedPool | None = None

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        message = self.message(fn, args)
        deadline = self._timeout if timeout is None else timeout
        self.notes = ()
        try:
            return self._call(message, deadline)
        except WorldFailure as failure:
            if not needs_rerun(failure):
                raise
            shorter = min(deadline, _RERUN_SECONDS)
            raise explained(failure, lambda: self._compare(message, shorter)) from None

    def _call(self, message: Call, deadline: float) -> list[Any]:
        pool = self._live_pool()
        reusable = False
        try:
            results, notes, spent = calls.call(pool, message, deadline)
            self.notes = tuple(notes)
            reusable = not (spent or self._bare)
        finally:
            # Also where pytest itself is interrupted in the middle of a call.
            if not reusable:
                self.close()
        return results

    def _compare(self, message: Call, deadline: float) -> None:
        """The call once more, in ranks of its own that compare every collective first."""
        pool = self._start(detail=True)
        try:
            calls.call(pool, message, deadline)
        finally:
            pool.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def message(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Call:
        """What travels to the ranks."""
        return Call(pack(fn, args), tuple(sys.path), str(Path.cwd()), dict(os.environ))

    def new_pool(self, *, detail: bool) -> ServedPool:
        """Ranks that are about to join their world."""
        warm_parent()
        return Pool(
            self.size,
            device=self._device,
            backend=self._backend,
            serial=self._serial,
            bare=self._bare,
            detail=detail,
        )

    def _live_pool(self) -> ServedPool:
        if self._pool is not None and not (self._pool.alive and self._pool.owner == os.getpid()):
            self.close()
        if self._pool is None:
            self._pool = self._start()
        return self._pool

    def _start(self, *, detail: bool = False) -> ServedPool:
        pool = self.new_pool(detail=detail)
        try:
            calls.start(pool, _START_SECONDS)
        except BaseException:
            pool.close()
            raise
        return pool


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments, pickled; what cannot travel is named."""
    try:
        return pickle.dumps((fn, args))
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise TypeError(
            f"{name} and its arguments cannot be sent to the ranks: {error}. The function must be "
            "at the top level of an importable module, the arguments must be picklable"
        ) from error


class ProcessesLauncher(Launcher):
    """One pool of forked ranks per size and lane, live across calls."""

    name = "processes"

    def __init__(self, *, device: str, backend: str, timeout: float) -> None:
        check_parent()
        self._device = device
        self._backend = ("nccl" if device == "cuda" else "gloo") if backend == "auto" else backend
        self._timeout = timeout
        self._worlds: dict[tuple[int, str, bool], ProcessWorld] = {}

    def world(self, size: int, lane: str = "main", *, bare: bool = False) -> World:
        if size < 1:
            raise ValueError(f"a world has at least one rank, not {size}")
        return self._world(size, lane, bare=bare)

    def serial_world(self, lane: str = "main") -> World:
        return self._world(0, lane)

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()

    def _world(self, size: int, lane: str, bare: bool = False) -> World:
        key = (size, lane, bare)
        if key not in self._worlds:
            self._worlds[key] = ProcessWorld(
                max(size, 1),
                device=self._device,
                backend=self._backend,
                timeout=self._timeout,
                serial=size == 0,
                bare=bare,
            )
        return self._worlds[key]
