"""Instants of a save: a copy of the folder before each operation on files.

A process that is killed leaves what it had written until then. So a copy of the folder, made
before an operation on files, is what a kill at that instant would leave, and one save that nobody
disturbs gives a copy for every one of its instants.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_cplife.evidence.folders import FolderState, StateBook, tree_digest, unnumbered
from pytest_cplife.scenarios.crash_faults import FINISHING, below

_OPERATIONS = {
    "open": "opening",
    "os.rename": "renaming",
    "os.remove": "removing",
    "os.rmdir": "removing",
    "os.mkdir": "making",
    "os.link": "linking",
    "os.symlink": "linking",
    "os.truncate": "truncating",
    FINISHING: "finishing",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_DECISIVE = ("renaming", "removing", "linking")

_T = TypeVar("_T")


class Watch:
    """A listener to audit events that keeps the folder of `path` wherever it has changed."""

    def __init__(self, book: StateBook, path: Path, name: str, rank: int, *, fresh: bool) -> None:
        self.seen: list[FolderState] = []
        self._book = book
        self._path = path
        self._folder = path.parent.resolve()
        self._name = f"{name}, rank {rank}"
        self._fresh = fresh
        self._last: tuple[object, ...] = ()
        self._decisive = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _OPERATIONS or not _changes(event, arguments, self._folder):
            return
        decisive = _OPERATIONS[event] in _DECISIVE
        # The trainer's own error handling must never see what goes wrong here.
        with contextlib.suppress(OSError, ValueError):
            look = _signature(self._folder)
            if look != self._last or (decisive and not self._decisive):
                self._last, self._decisive = look, decisive
                self._look(f"before {_OPERATIONS[event]} {_called(arguments[0])}", decisive)

    def _look(self, when: str, decisive: bool) -> None:
        tree = self._book.keep(self._folder)
        if tree:
            copy = self._book.root / tree / self._path.name
            name = f"{self._name} {when}"
            state = FolderState(
                name, tree, tree_digest(copy), self._fresh, time.monotonic(), decisive
            )
            self.seen.append(state)


def _changes(event: str, arguments: tuple[Any, ...], folder: Path) -> bool:
    """Whether it is an operation that may change something below `folder`."""
    if event == "open":
        return bool(arguments[2] & _WRITING) and below(arguments[0], -1, folder)
    # Removals from an open folder, and by a path.
    opened = arguments[1] if event in ("os.remove", "os.rmdir") else -1
    return below(arguments[0], opened, folder)


def _called(path: Any) -> str:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return "a file"
    return unnumbered(Path(os.fsdecode(path)).name)


def _signature(folder: Path) -> tuple[object, ...]:
    """Equal where, as far as the file system tells at a glance, nothing has changed."""
    found: list[object] = []
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            about = (Path(place) / name).lstat()
            found.append((place, name, about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(sorted(found, key=repr))


def choose(states: Iterable[FolderState], limit: int) -> list[FolderState]:
    """At most `limit` different states, those first in which most is at stake.

    One for each content of the path itself comes first, and among these what was there before a
    rename or a removal; then the others, in the same order. Of too many of one kind some are taken
    that lie evenly apart. A path at which nothing lies is another thing where an older checkpoint
    was than where there has never been one.
    """
    contents: set[tuple[str, bool]] = set()
    ranked: tuple[list[FolderState], ...] = ([], [], [], [])
    for state in _unique(states):
        known = (state.checkpoint, state.fresh) in contents
        contents.add((state.checkpoint, state.fresh))
        ranked[2 * known + (not state.decisive)].append(state)
    chosen: list[FolderState] = []
    for group in ranked:
        chosen += _spread(group, limit - len(chosen))
    return sorted(chosen, key=lambda each: each.moment)


def halfway(states: Iterable[FolderState], newest: FolderState, limit: int) -> list[FolderState]:
    """At most `limit` states of a save over a checkpoint, one for each content of the path.

    Those in which neither checkpoint lies there come first, then one with the older. Of each
    content it is one from the middle, when some of what belongs together is there and some is not.
    Where nothing was saved over, they are of a save to a new path.

    Args:
        newest: the state after that save.
    """
    unique = [state for state in _unique(states) if state.tree != newest.tree]
    over = [state for state in unique if not state.fresh] or unique
    over.sort(key=lambda each: each.moment)
    contents: dict[str, list[FolderState]] = {}
    for state in over:
        contents.setdefault(state.checkpoint, []).append(state)
    # Before anything is changed the older one lies there.
    whole = dict.fromkeys((next(iter(contents), ""), newest.checkpoint))
    torn = [content for content in contents if content not in whole]
    chosen = _middle(torn, limit)
    chosen += [content for content in whole if content in contents][: limit - len(chosen)]
    looks = [state for content in chosen for state in _middle(_decisive(contents[content]), 1)]
    return sorted(looks, key=lambda each: each.moment)


def _decisive(states: list[FolderState]) -> list[FolderState]:
    """Those of `states` before a rename or a removal, where there are any."""
    return [state for state in states if state.decisive] or states


def _unique(states: Iterable[FolderState]) -> list[FolderState]:
    """Each state once, as it was before a rename or a removal if it was."""
    unique: dict[tuple[str, bool], FolderState] = {}
    for state in sorted(states, key=lambda each: (not each.decisive, each.moment)):
        unique.setdefault((state.tree, state.fresh), state)
    return [*unique.values()]


def _middle(items: Sequence[_T], count: int) -> list[_T]:
    """`count` of them that lie evenly apart from each other and from both ends."""
    if len(items) <= count:
        return [*items]
    return [items[(number + 1) * len(items) // (count + 1)] for number in range(count)]


def _spread(states: list[FolderState], count: int) -> list[FolderState]:
    if len(states) <= count:
        return states
    if count < 2:
        return states[:count]
    step = (len(states) - 1) / (count - 1)
    return [states[round(number * step)] for number in range(count)]
