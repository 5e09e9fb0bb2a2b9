"""Directories that appear whole: written beside, checked, and renamed when all is on the disk.

A checkpoint directory holds data files and a manifest with the size and CRC-32 of each: it
finds what decays, at 6 GB/s, and does not pretend to find who tampers.
It is never written in place. Where it replaces an older one, two renames do it; the reader
repairs the one state that a kill between the two can leave.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

MANIFEST = "manifest.json"
FORMAT = "reference-sharded"
FORMAT_VERSION = 2
"""Until version 1 tensors were written with the strides that they had."""
CONTIGUOUS = 2
"""From this version on every tensor was contiguous when it was written."""


@dataclass(frozen=True)
class FileRecord:
    """What a manifest knows of a file."""

    size: int
    crc32: int


def file_record(path: Path) -> FileRecord:
    """Size and checksum of a file, read without a copy."""
    size = path.stat().st_size
    if not size:
        return FileRecord(0, 0)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return FileRecord(size, zlib.crc32(content))


def seal(paths: Iterable[Path]) -> dict[str, FileRecord]:
    """Make the files durable and return their records, by name.

    The disk and the checksums are waited for at the same time.
    """
    paths = list(paths)
    with _syncing(paths):
        return {path.name: file_record(path) for path in paths}


@contextmanager
def _syncing(paths: Collection[Path]) -> Iterator[None]:
    """Make files or directories durable, all at once, while the block runs: a file system commits
    what it is asked for together in one go."""
    with ThreadPoolExecutor(max(len(paths), 1)) as pool:
        durable = pool.map(sync, paths)
        yield
        for _ in durable:  # raises what a sync has run into
            pass


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` by `value`, wholly or not at all."""
    with replacing(path) as file:
        file.write(_json(value).encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that becomes the file `path` when the block ends well.

    One name for all of them: what a killed process leaves, the next overwrites.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it is what fills it
        raise
    sync(path.parent)


# -- publishing ------------------------------------------------------------------------


def begin(path: Path) -> Path:
    """A fresh directory beside `path` to write into; leftovers of killed saves are removed.

    Raises:
        FileExistsError: there is something at `path` that is no checkpoint, and that publishing
            one would remove.
    """
    path = _itself(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    _refuse_other(path)
    for leftover in [*_siblings(path, "new"), *_siblings(path, "old")]:
        shutil.rmtree(leftover)
    fresh = path.with_name(f".{path.name}.new-{uuid.uuid4().hex}")
    fresh.mkdir()
    return fresh


def _itself(path: Path) -> Path:
    """`path`, or what it links to. Links further up stay: other nodes may have others there."""
    return _itself(path.parent / path.readlink()) if path.is_symlink() else path


def _refuse_other(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise FileExistsError(f"{path} is a file and no checkpoint directory")
    there = {entry.name for entry in path.iterdir()}
    others = sorted(name for name in there if not name.endswith((".distcp", ".pt")))
    if others and not there & {MANIFEST, ".metadata"}:
        raise FileExistsError(f"{path} is a directory and no checkpoint: it has {others[0]!r}")


def publish(
    written: Path,
    path: Path,
    files: Mapping[str, FileRecord],
    unsynced: Iterable[str] = (),
    **facts: Any,
) -> None:
    """Give the directory `written` its manifest and make it `path`.

    Args:
        files: the records of all of its files.
        unsynced: those that `seal` has not made durable yet.
        facts: what else the manifest is to tell.
    """
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "files": {name: asdict(record) for name, record in files.items()},
        **facts,
    }
    (written / MANIFEST).write_text(_json(manifest))
    with _syncing([written / MANIFEST, *(written / name for name in unsynced), written]):
        pass
    path, old = _itself(path), None
    if path.exists():
        old = path.with_name(f".{path.name}.old-{uuid.uuid4().hex}")
        path.rename(old)
        # A kill here leaves no `path`, but two whole directories: `recover` takes the new one.
    try:
        written.rename(path)
    except OSError:
        if old is not None:
            old.rename(path)
        raise
    sync(path.parent)
    if old is not None:
        # The new one is there, and a save that says that it failed would be wrong. What cannot be
        # removed is left to the next `begin`.
        shutil.rmtree(old, ignore_errors=True)


def recover(path: Path) -> None:
    """Finish a replacement that was killed between its two renames."""
    path = _itself(path)
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
    """The manifest of the directory `path`, after a check of its format, files and their sizes.

    Raises:
        FileNotFoundError: there is no finished checkpoint, or a file of it is missing.
        ValueError: the manifest is damaged, the format is newer, a file is cut, or one does not
            belong there.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a checkpoint directory")
    if not (path / MANIFEST).is_file():
        raise FileNotFoundError(f"{path / MANIFEST} is missing: the save was never finished")
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version, files = manifest["format_version"], manifest["files"]
        records = {name: FileRecord(**record) for name, record in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path / MANIFEST} cannot be read: {error!r}") from error
    if manifest.get("format") != FORMAT or not isinstance(version, int):
        raise ValueError(f"{path / MANIFEST}: format {manifest.get('format')!r}, not {FORMAT!r}")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path / MANIFEST}: format version {version}; this code reads up to {FORMAT_VERSION}"
        )
    there = {str(entry.relative_to(path)) for entry in path.rglob("*") if entry.is_file()}
    wanted = set(records)
    for name in sorted(wanted - there):
        raise FileNotFoundError(f"{path / name} is missing")
    foreign = sorted(there - wanted - {MANIFEST})
    if foreign:
        raise ValueError(f"{path / foreign[0]} does not belong to this checkpoint")
    for name, record in records.items():
        size = (path / name).stat().st_size
        if size != record.size:
            raise ValueError(f"{path / name} has {size} bytes, not {record.size}")
    return dict(manifest)


def verify(path: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check the checksums of the files `names`.

    Raises:
        ValueError: a file is not what was written; the message names it.
    """
    for name in names:
        if file_record(path / name).crc32 != manifest["files"][name]["crc32"]:
            raise ValueError(f"{path / name} is damaged (its checksum differs)")
