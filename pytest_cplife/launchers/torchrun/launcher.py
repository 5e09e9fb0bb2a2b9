"""The launcher ``torchrun``: worlds on the ranks that torchrun or SLURM started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_cplife.launchers.base import Launcher, World
from pytest_cplife.launchers.messages import Call
from pytest_cplife.launchers.processes import ProcessWorld, pack
from pytest_cplife.launchers.served import ServedPool
from pytest_cplife.launchers.torchrun.entry import open_hub
from pytest_cplife.launchers.torchrun.hub import Hub
from pytest_cplife.launchers.torchrun.pool import DistantPool


class DistantWorld(ProcessWorld):
    """A world as any other of processes, but for where these come from."""

    def __init__(self, hub: Hub, environment: dict[str, str], size: int, **options: Any) -> None:
        super().__init__(size, **options)
        self._hub = hub
        self._environment = environment

    def message(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Call:
        """What travels: of the environment, what has changed. The rest is each machine's own."""
        now, before = dict(os.environ), self._environment
        names = {name for name in {*now, *before} if now.get(name) != before.get(name)}
        return Call(
            pack(fn, args),
            tuple(sys.path),
            str(Path.cwd()),
            {name: now.get(name) for name in names},
            changes_only=True,
        )

    def new_pool(self, *, detail: bool) -> ServedPool:
        return DistantPool(
            self._hub,
            self.size,
            device=self._device,
            backend=self._backend,
            serial=self._serial,
            bare=self._bare,
            detail=detail,
        )


class TorchrunLauncher(Launcher):
    """Worlds of the first ranks of those given, one set of processes per size and lane.

    Raises:
        RuntimeError: this process is not rank 0 of ranks that have been started together.
    """

    name = "torchrun"

    def __init__(self, *, device: str, backend: str, timeout: float) -> None:
        self._hub = open_hub()
        self._environment = dict(os.environ)
        self._options = {
            "device": device,
            "backend": ("nccl" if device == "cuda" else "gloo") if backend == "auto" else backend,
            "timeout": timeout,
        }
        self._worlds: dict[tuple[int, str, bool], DistantWorld] = {}

    def world(self, size: int, lane: str = "main", *, bare: bool = False) -> World:
        """See :meth:`pytest_cplife.launchers.base.Launcher.world`.

        Raises:
            ValueError: there are fewer ranks.
        """
        most = self._hub.given.world_size
        if not 1 <= size <= most:
            raise ValueError(f"a world of {size} ranks is not to be had from the {most} given")
        return self._world(size, lane, bare=bare)

    def serial_world(self, lane: str = "main") -> World:
        return self._world(0, lane)

    def check_folder(self, folder: Path) -> None:
        self._hub.check_folder(folder)

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()

    def _world(self, size: int, lane: str, *, bare: bool = False) -> DistantWorld:
        key = (size, lane, bare)
        if key not in self._worlds:
            self._worlds[key] = DistantWorld(
                self._hub,
                self._environment,
                max(size, 1),
                serial=size == 0,
                bare=bare,
                **self._options,
            )
        return self._worlds[key]
