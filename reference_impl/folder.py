"""A folder of checkpoints ``step-N``: the newest whole one, a pointer to it, and what is kept.

A pointer comes after what it points to, and a checkpoint leaves the names before it is removed:
whatever a kill leaves, the newest whole one is found.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from .atomic import read_manifest, recover, write_json

POINTER = "latest.json"
STEP = re.compile(r"step-(\d+)")


def point_to(folder: Path, name: str) -> None:
    """Make `name` the latest checkpoint of `folder`; comes after it is published, never before."""
    write_json(folder / POINTER, {"latest": name})


def latest(folder: Path) -> Path | None:
    """The checkpoint to resume from: what the pointer names, else the newest whole one.

    None if there is none, also where there is no such folder: a first run asks as any other.
    """
    for name in [*_pointed(folder), *(entry.name for entry in reversed(_steps(folder)))]:
        recover(folder / name)
        if is_whole(folder / name):
            return folder / name
    return None


def _pointed(folder: Path) -> list[str]:
    """What the pointer names; nothing where it is missing or damaged."""
    try:
        return [str(json.loads((folder / POINTER).read_text())["latest"])]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def is_whole(path: Path) -> bool:
    """True if `path` is a finished directory with all its files (checksums are not read)."""
    try:
        read_manifest(path)
    except (OSError, ValueError):
        return False
    return True


def retain(folder: Path, keep: int, protect: Iterable[Path] = ()) -> list[Path]:
    """Remove all but the newest `keep` whole checkpoints; returns what was removed.

    Never the one to resume from, nor a protected one. Broken ones do not count as kept, so
    that the last good one outlives any number of failed saves.
    """
    if keep < 1:
        raise ValueError("at least one checkpoint must be kept")
    good = latest(folder)
    whole = [path for path in _steps(folder) if is_whole(path)]
    kept = {*whole[-keep:], *protect}
    removed = []
    for path in _steps(folder):
        if path in kept or path == good or path not in whole:
            continue
        # Out of the names first: a kill in the middle of rmtree leaves no half checkpoint there.
        doomed = path.with_name(f".{path.name}.gone-{uuid.uuid4().hex}")
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        removed.append(path)
    for left in folder.glob(".step-*.gone-*"):  # by a kill in the middle of this
        shutil.rmtree(left, ignore_errors=True)
    return removed


def _steps(folder: Path) -> list[Path]:
    """Directories ``step-N`` of `folder`, by their number."""
    if not folder.is_dir():
        return []
    found = [(STEP.fullmatch(entry.name), entry) for entry in folder.iterdir() if entry.is_dir()]
    return [path for match, path in sorted(((m, p) for m, p in found if m), key=_number)]


def _number(item: tuple[re.Match[str], Path]) -> int:
    return int(item[0][1])
