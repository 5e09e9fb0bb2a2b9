"""Instants of a save: a copy of the folder before each operation on files.

A process that is killed leaves what it had written until then. So a copy of the folder, made
before an operation on files, is what a kill at that instant would leave, and one save that nobody
disturbs gives a copy for every one of its instants.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_cplife.evidence.folders import FolderState, StateBook, tree_digest, unnumbered

_OPERATIONS = {
    "open": "opening",
    "os.rename": "renaming",
    "os.remove": "removing",
    "os.rmdir": "removing",
    "os.mkdir": "making",
    "os.link": "linking",
    "os.symlink": "linking",
    "os.truncate": "truncating",
}
_DECISIVE = ("renaming", "removing", "linking")


class Watch:
    """A listener to audit events that keeps the folder of `path` wherever it has changed."""

    def __init__(self, book: StateBook, path: Path, name: str, rank: int, *, fresh: bool) -> None:
        self.seen: list[FolderState] = []
        self._book = book
        self._path = path
        self._name = f"{name}, rank {rank}"
        self._fresh = fresh
        self._last: tuple[object, ...] = ()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _OPERATIONS:
            return
        # The trainer's own error handling must never see what goes wrong here.
        with contextlib.suppress(OSError, ValueError):
            look = _signature(self._path.parent)
            if look != self._last or _OPERATIONS[event] in _DECISIVE:
                self._last = look
                self.look(f"before {_OPERATIONS[event]} {_called(arguments[0])}", event)

    def look(self, when: str, event: str = "") -> None:
        """Keep the folder as it is now."""
        tree = self._book.keep(self._path.parent)
        if tree:
            copy = self._book.root / tree / self._path.name
            state = FolderState(
                name=f"{self._name} {when}",
                tree=tree,
                checkpoint=tree_digest(copy),
                fresh=self._fresh,
                moment=time.monotonic(),
                decisive=_OPERATIONS.get(event) in _DECISIVE,
            )
            self.seen.append(state)


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

    First the first of each content of the path itself, then what was there before a rename or a
    removal, then the others; of too many of one kind some that lie evenly apart.
    """
    unique: dict[tuple[str, bool], FolderState] = {}
    for state in sorted(states, key=lambda each: each.moment):
        known = unique.setdefault((state.tree, state.fresh), state)
        if state.decisive and not known.decisive:
            unique[state.tree, state.fresh] = state
    contents: set[str] = set()
    ranked: tuple[list[FolderState], ...] = ([], [], [])
    for state in unique.values():
        new = state.checkpoint not in contents
        contents.add(state.checkpoint)
        ranked[0 if new else 1 if state.decisive else 2].append(state)
    chosen: list[FolderState] = []
    for group in ranked:
        chosen += _spread(group, limit - len(chosen))
    return sorted(chosen, key=lambda each: each.moment)


def _spread(states: list[FolderState], count: int) -> list[FolderState]:
    if len(states) <= count:
        return states
    if count < 2:
        return states[:count]
    step = (len(states) - 1) / (count - 1)
    return [states[round(number * step)] for number in range(count)]
