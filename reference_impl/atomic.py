"""Directories that appear whole: written beside, checked, and renamed when all is on the disk.

A checkpoint directory holds data files and a manifest with the size and SHA-256 of each.
It is never written in place. Where it replaces an older one, two renames do it; the reader
repairs the one state that a kill between the two can leave.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
POINTER = "latest.json"
FORMAT = "reference-sharded"
FORMAT_VERSION = 1
STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class FileRecord:
    """What a manifest knows of a file."""

    size: int
    sha256: str


def file_record(path: Path) -> FileRecord:
    """Size and digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return FileRecord(path.stat().st_size, digest.hexdigest())


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` by `value`, wholly or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("w") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


# -- publishing ------------------------------------------------------------------------


def begin(path: Path) -> Path:
    """A fresh directory beside `path` to write into; leftovers of killed saves are removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    for leftover in [*_siblings(path, "new"), *_siblings(path, "old")]:
        shutil.rmtree(leftover)
    fresh = path.with_name(f".{path.name}.new-{uuid.uuid4().hex}")
    fresh.mkdir()
    return fresh


def publish(written: Path, path: Path, files: Mapping[str, FileRecord], **facts: Any) -> None:
    """Seal the directory `written` with its manifest and make it `path`."""
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "files": {name: asdict(record) for name, record in files.items()},
        **facts,
    }
    for name in files:
        sync(written / name)
    write_json(written / MANIFEST, manifest)
    old = None
    if path.exists():
        old = path.with_name(f".{path.name}.old-{uuid.uuid4().hex}")
        path.rename(old)
        # A kill here leaves no `path`, but two whole directories: `recover` takes the new one.
    written.rename(path)
    sync(path.parent)
    if old is not None:
        shutil.rmtree(old)


def recover(path: Path) -> None:
    """Finish a replacement that was killed between its two renames."""
    if path.exists():
        return
    for kind in ("new", "old"):
        for candidate in _siblings(path, kind):
            if (candidate / MANIFEST).is_file() and _siblings(path, "old"):
                candidate.rename(path)
                sync(path.parent)
                return


def _siblings(path: Path, kind: str) -> list[Path]:
    prefix = f".{path.name}.{kind}-"
    if not path.parent.is_dir():
        return []
    return sorted(entry for entry in path.parent.iterdir() if entry.name.startswith(prefix))


# -- checking --------------------------------------------------------------------------


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the directory `path`, after a check of its format and set of files.

    Raises:
        FileNotFoundError: there is no finished checkpoint, or a file of it is missing.
        ValueError: the format is newer, or there are files that the manifest does not know.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a checkpoint directory")
    if not (path / MANIFEST).is_file():
        raise FileNotFoundError(f"{path / MANIFEST} is missing: the save was never finished")
    manifest = json.loads((path / MANIFEST).read_text())
    version = manifest.get("format_version")
    if manifest.get("format") != FORMAT or not isinstance(version, int):
        raise ValueError(f"{path / MANIFEST}: format {manifest.get('format')!r}, not {FORMAT!r}")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path / MANIFEST}: format version {version}; this code reads up to {FORMAT_VERSION}"
        )
    there = {str(entry.relative_to(path)) for entry in path.rglob("*") if entry.is_file()}
    wanted = set(manifest["files"])
    for name in sorted(wanted - there):
        raise FileNotFoundError(f"{path / name} is missing")
    foreign = sorted(there - wanted - {MANIFEST})
    if foreign:
        raise ValueError(f"{path / foreign[0]} does not belong to this checkpoint")
    return dict(manifest)


def verify(path: Path, manifest: Mapping[str, Any], part: int = 0, parts: int = 1) -> None:
    """Check size and digest of every `parts`-th file: the ranks share the reading.

    Raises:
        ValueError: a file is not what was written; the message names it.
    """
    for index, (name, wanted) in enumerate(sorted(manifest["files"].items())):
        if index % parts != part:
            continue
        size = (path / name).stat().st_size
        if size != wanted["size"]:
            raise ValueError(f"{path / name} has {size} bytes, written were {wanted['size']}")
        if file_record(path / name).sha256 != wanted["sha256"]:
            raise ValueError(f"{path / name} is damaged (its SHA-256 differs)")


# -- many checkpoints ------------------------------------------------------------------


def point_to(folder: Path, name: str) -> None:
    """Make `name` the latest checkpoint of `folder`; comes after it is published, never before."""
    write_json(folder / POINTER, {"latest": name})


def latest(folder: Path) -> Path | None:
    """The checkpoint to resume from: what the pointer names, else the newest whole one."""
    names: list[str] = []
    if (folder / POINTER).is_file():
        names.append(str(json.loads((folder / POINTER).read_text())["latest"]))
    names += [entry.name for entry in reversed(_steps(folder))]
    for name in names:
        recover(folder / name)
        if is_whole(folder / name):
            return folder / name
    return None


def is_whole(path: Path) -> bool:
    """True if `path` is a finished directory with all its files (digests are not read)."""
    try:
        manifest = read_manifest(path)
    except (OSError, ValueError):
        return False
    return all((path / n).stat().st_size == r["size"] for n, r in manifest["files"].items())


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
    return removed


def _steps(folder: Path) -> list[Path]:
    """Directories ``step-N`` of `folder`, by their number."""
    found = [(STEP.fullmatch(entry.name), entry) for entry in folder.iterdir() if entry.is_dir()]
    return [path for match, path in sorted(((m, p) for m, p in found if m), key=_number)]


def _number(item: tuple[re.Match[str], Path]) -> int:
    return int(item[0][1])
