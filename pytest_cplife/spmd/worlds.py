"""The worlds of users' tests: made when first asked for, live until pytest ends."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.ending import interrupt_on_sigterm
from pytest_cplife.launchers import make_launcher, most_ranks
from pytest_cplife.launchers.base import Launcher, World, WorldFailure
from pytest_cplife.launchers.folders import PrivateFolder
from pytest_cplife.options import RankOptions, resolve_ranks
from pytest_cplife.spmd.outcome import Ended, ranks_text, read_notes, told
from pytest_cplife.spmd.parcel import Parcel
from pytest_cplife.spmd.picture import Style, style_of
from pytest_cplife.spmd.rank import STREAMS, Site, run_body, run_function, run_object


class RanksDisagree(Exception):
    """Some ranks skipped, or expected to fail, and others did not."""


@dataclass(slots=True)
class Round:
    """What came of one call: the ends of all ranks, or the failure of the call.

    Attributes:
        ends: how each rank's body ended; all of them where there is no failure.
        output: titles and texts of what the ranks printed.
    """

    size: int
    ends: dict[int, Ended] = field(default_factory=dict)
    failure: WorldFailure | None = None
    output: list[tuple[str, str]] = field(default_factory=list)

    def settle(self) -> None:
        """Skip where all ranks skip, and say who did where only some of them do.

        Raises:
            RanksDisagree: the ranks ended in different ways.
        """
        __tracebackhide__ = True
        kinds = {ended.kind for ended in self.ends.values()}
        reasons = dict.fromkeys(ended.reason for ended in self.ends.values() if ended.reason)
        if len(kinds) > 1:
            raise RanksDisagree(f"{told(self.ends)}. All ranks have to, or none")
        if kinds == {"skipped"}:
            pytest.skip("; ".join(reasons))
        if kinds == {"xfailed"}:
            pytest.xfail("; ".join(reasons))

    @property
    def strays(self) -> str:
        """Who skipped in a call that failed; the others may have waited for just these ranks."""
        left = {rank: e for rank, e in self.ends.items() if e.kind in ("skipped", "xfailed")}
        if not left:
            return ""
        others = [rank for rank in range(self.size) if rank not in left]
        return f"{told(left)}, but {ranks_text(others)} did not" if others else told(left)


class UserWorld(World):
    """A world for users' tests: ranks find what has been imported since they were forked."""

    def __init__(self, world: World, *, launcher: str, style: Style) -> None:
        self.size = world.size
        self._world = world
        self._launcher = launcher
        self._style = style
        self._known: dict[str, int] = {}

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """See :meth:`pytest_cplife.launchers.base.World.run`; `fn` may also skip, on all ranks."""
        __tracebackhide__ = True
        if self._launcher == "threads":
            call: tuple[Any, ...] = (run_object, fn, args)
        else:
            self._meet(getattr(fn, "__module__", ""))
            call = (run_function, _pickled(fn, args))
        done = self._play(*call, style=self._style, timeout=timeout)
        if done.failure is not None:
            if done.strays:
                raise RanksDisagree(done.strays) from done.failure
            raise _from_the_program_on(done.failure, done.ends)
        done.settle()
        return [done.ends[rank].value for rank in range(self.size)]

    def run_parcel(self, parcel: Parcel, style: Style, timeout: float | None) -> Round:
        """Run the body of a marked test."""
        self._meet(parcel.module)
        return self._play(run_body, parcel, style=style, timeout=timeout)

    def close(self) -> None:
        self._world.close()

    def _meet(self, module: str) -> None:
        """Have ranks forked anew when the module was not there at their birth.

        They would import it themselves, but without pytest's rewriting of its assertions, as ranks
        have to that somebody else has started.
        """
        if self._launcher != "processes" or self._known.get(module) == id(sys.modules.get(module)):
            return
        self._world.close()
        self._known = {name: id(found) for name, found in sys.modules.items()}

    def _play(
        self, function: Callable[..., Any], *args: Any, style: Style, timeout: float | None
    ) -> Round:
        private = PrivateFolder()
        folder, done = private.path, Round(self.size)
        try:
            site = Site(str(folder), os.getpid(), style)
            try:
                ends = self._world.run(function, *args, site, timeout=timeout)
                done.ends = dict(enumerate(ends))
            except WorldFailure as failure:
                done.failure = failure
                done.ends = read_notes(folder, self.size)
            self.notes = self._world.notes
            done.output = _output(folder, self.size)
            if self.notes:
                done.output.append(("Left behind by ranks, and put right", "\n".join(self.notes)))
        finally:
            private.remove()
        return done


def _from_the_program_on(failure: WorldFailure, notes: Mapping[int, Ended]) -> WorldFailure:
    """The failure without our own frames, neither the ranks' nor those of the pytest process."""
    failures = tuple(
        replace(one, traceback=notes[one.rank].trace)
        if one.rank in notes and notes[one.rank].trace
        else one
        for one in failure.failures
    )
    told = WorldFailure(failures, failure.seconds)
    told.__cause__ = failure.__cause__
    return told


def _output(folder: Path, size: int) -> list[tuple[str, str]]:
    sections = []
    for rank in range(size):
        for stream in STREAMS:
            path = folder / f"rank{rank}.{stream}"
            text = path.read_text(errors="replace") if path.exists() else ""
            if text:
                sections.append((f"Captured {stream} rank {rank}", text))
    return sections


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((fn, args))
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise TypeError(
            f"{name} and its arguments cannot be sent to the ranks: {error}. The function must be "
            "at the top level of an importable module and the arguments must be picklable, or use "
            "--cplife-launcher=threads, where closures work"
        ) from error


class Worlds:
    """The worlds of one pytest process."""

    def __init__(self, config: pytest.Config) -> None:
        self.options: RankOptions = resolve_ranks(config)
        self._style = style_of(config)
        self._launcher: Launcher | None = None
        self._worlds: dict[tuple[int, str, bool], UserWorld] = {}

    @property
    def threads(self) -> bool:
        return self.options.launcher == "threads"

    def world(self, size: int, lane: str = "main", *, bare: bool = False) -> UserWorld:
        """The world of `size` ranks; see :meth:`pytest_cplife.launchers.base.Launcher.world`."""
        options = self.options
        limit = options.max_world_size
        if limit is not None and size > limit:
            pytest.skip(f"needs {size} ranks, --cplife-max-world-size is {limit}")
        given = most_ranks(options.launcher, options.device, options.backend)
        if given is not None and size > given[0]:
            pytest.skip(f"needs {size} ranks, {given[1]}")
        if self._launcher is None:
            self._launcher = make_launcher(
                options.launcher,
                device=options.device,
                backend=options.backend,
                timeout=options.timeout,
            )
        key = (size, lane, bare)
        if key not in self._worlds:
            self._worlds[key] = UserWorld(
                self._launcher.world(size, lane, bare=bare),
                launcher=options.launcher,
                style=self._style,
            )
        return self._worlds[key]

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
            self._worlds.clear()


_WORLDS: pytest.StashKey[Worlds] = pytest.StashKey()


def worlds_of(config: pytest.Config) -> Worlds:
    """The worlds of this pytest process, ended when it ends."""
    if _WORLDS not in config.stash:
        interrupt_on_sigterm(config)
        config.stash[_WORLDS] = worlds = Worlds(config)
        config.add_cleanup(worlds.close)
    return config.stash[_WORLDS]
