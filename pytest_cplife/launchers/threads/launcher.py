"""The launcher ``threads``: ranks that are threads of the pytest process and take turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.base import Launcher, World
from pytest_cplife.launchers.threads import private, scene
from pytest_cplife.launchers.threads.crew import Crew
from pytest_cplife.launchers.threads.outcomes import Outcome, Returned, failure_of


class ThreadWorld(World):
    """A world whose ranks are made at the first call and replaced after any that failed."""

    def __init__(self, size: int, *, device: str, timeout: float, serial: bool, bare: bool) -> None:
        self.size = size
        self._device = device
        self._timeout = timeout
        self._serial = serial
        self._bare = bare
        self._crew: Crew | None = None

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """See :meth:`pytest_cplife.launchers.base.World.run`; any callable will do here.

        Nothing is pickled: closures work, and arguments and results are the objects themselves.
        """
        if scene.occupied():
            raise RuntimeError("a world of the launcher 'threads' already runs; calls do not nest")
        deadline = self._timeout if timeout is None else timeout
        start = time.monotonic()
        self.notes = ()
        try:
            crew = self._crew
            if crew is None:
                crew = self._crew = Crew(
                    self.size, device=self._device, serial=self._serial, bare=self._bare
                )
                _check(crew.join(self._timeout), start)
            outcomes, notes = crew.call(fn, args, deadline)
            self.notes = tuple(notes)
            _check(outcomes, start)
        finally:
            if self._bare or self._crew is None or self._crew.spent:
                self.close()
        return [_value(outcomes[rank]) for rank in range(self.size)]

    def close(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()


def _check(outcomes: dict[int, Outcome], start: float) -> None:
    __tracebackhide__ = True
    if not all(isinstance(outcome, Returned) for outcome in outcomes.values()):
        raise failure_of(outcomes, time.monotonic() - start)


def _value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Returned)
    return outcome.value


class ThreadsLauncher(Launcher):
    """One set of rank threads per size and lane, live across calls.

    Args:
        device: ``"cpu"``, or ``"cuda"`` for ranks that share the GPUs of this machine.
        backend: ``"auto"`` or ``"gloo"``. NCCL refuses two ranks on one device and one process.
        timeout: seconds that one call may take. A deadlock needs none of them.

    Raises:
        ValueError: another backend is asked for.
        RuntimeError: this torch lacks a private part that the launcher needs.
    """

    name = "threads"

    def __init__(
        self, *, device: str = "cpu", backend: str = "auto", timeout: float = 120.0
    ) -> None:
        if backend not in ("auto", "gloo"):
            raise ValueError(
                f"launcher 'threads' runs on gloo, not on {backend!r}: accepted are 'auto' and "
                "'gloo'; for others there is the launcher 'processes'"
            )
        private.check_torch()
        # Its groups would make one of torch's size, which processes forked later had to read.
        torch_private.open_recorder()
        self._device = device
        self._timeout = timeout
        self._worlds: dict[tuple[int, str, bool], ThreadWorld] = {}

    def world(self, size: int, lane: str = "main", *, bare: bool = False) -> World:
        """See :meth:`pytest_cplife.launchers.base.Launcher.world`.

        Worlds of different lanes share no thread and no group; what a program keeps in modules
        they share, as all threads do.
        """
        if size < 1:
            raise ValueError(f"a world has at least one rank, not {size}")
        return self._world(size, lane, bare=bare)

    def serial_world(self, lane: str = "main") -> World:
        return self._world(0, lane)

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()

    def _world(self, size: int, lane: str, *, bare: bool = False) -> ThreadWorld:
        key = (size, lane, bare)
        if key not in self._worlds:
            self._worlds[key] = ThreadWorld(
                max(size, 1),
                device=self._device,
                timeout=self._timeout,
                serial=size == 0,
                bare=bare,
            )
        return self._worlds[key]
