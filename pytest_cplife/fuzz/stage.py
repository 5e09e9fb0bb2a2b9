"""Where a fuzz suite runs: an adapter, a launcher that is alive, and a folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cplife.fuzz.ranks import merged, of_failure
from pytest_cplife.launchers.base import Launcher, WorldFailure
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation


@dataclass(slots=True)
class FuzzStage:
    """What every suite is given.

    Attributes:
        adapter: ``MOD:ATTR`` or ``path/to/file.py:ATTR``.
        launcher: gives the worlds; they stay alive between examples.
        folder: for what examples write.
        meshes: what examples may be on, simplest first.
        steps: optimizer steps that a run makes at most before and after a save.
        seed: of every run.
        timeout: seconds that one call may take.
    """

    adapter: str
    launcher: Launcher
    folder: Path
    meshes: Sequence[MeshSpec]
    steps: tuple[int, int] = (3, 2)
    seed: int = 20
    timeout: float = 30.0
    _numbers: Iterable[int] = field(default_factory=itertools.count)

    def new_folder(self) -> Path:
        """An empty folder that all ranks of one example share."""
        folder = self.folder / str(next(iter(self._numbers)))
        folder.mkdir(parents=True)
        return folder

    def run(
        self, spec: MeshSpec, fn: Callable[..., Any], *args: Any, bare: bool = False
    ) -> list[Any]:
        """Call ``fn(rank, *args)`` on the ranks of the world of `spec`."""
        # The ranks of the suite's other runs, where there are any: they are warm.
        world = self.launcher.world(spec.world_size, bare=bare)
        return world.run(fn, *args, timeout=self.timeout)

    def judge(self, spec: MeshSpec, fn: Callable[..., Any], *args: Any) -> tuple[Violation, ...]:
        """The same for a function that returns violations; a failed call is one as well."""
        try:
            return merged(self.run(spec, fn, *args))
        except WorldFailure as failure:
            return (of_failure(failure),)
