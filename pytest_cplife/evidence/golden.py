"""Golden archives: a checkpoint of today, with what a load of it has to give tomorrow.

An archive is a folder with the trainer's own checkpoint and a manifest beside it. Manifests are
read before any rank is there, so nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

CHECKPOINT = "checkpoint"
MANIFEST = "manifest.json"
VERSION = 1
"""Raised where a key of the manifest changes its meaning."""

_CHUNK = 1 << 22


class BadArchive(ValueError):
    """A folder is no archive that can be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of one archive.

    Attributes:
        name: the folder's name, which the file itself does not tell.
        recorded: when, in UTC.
        adapter: what `adapter_name` gives.
        mesh: the topology that saved the checkpoint.
        versions: of pytest-cplife and torch.
        content: a digest of the checkpoint's own bytes.
        counters: of the run that saved it.
        digests: digests of full tensors by name, for weights, buffers, optimizer state and averages
            each; an entry that is no tensor stands there as its type and text.
        structure: the parts of the file and what each of them is.
        losses: of the steps that came after the save; files of earlier versions have none.
        seed: of the run that made them.
    """

    name: str
    recorded: str
    adapter: str
    framework: str
    checkpoint_format: str
    mesh: str
    versions: dict[str, str]
    content: str
    counters: dict[str, int]
    digests: dict[str, dict[str, str]]
    structure: dict[str, str]
    losses: tuple[float, ...] = ()
    seed: int | None = None

    def says_the_same(self, other: Manifest) -> bool:
        """Whether an archive beside `other` would add nothing; two pickles of one may differ."""
        # Losses may carry the noise of their run, and speak of the code more than of the file.
        kept: dict[str, Any] = {
            "name": "",
            "recorded": "",
            "content": "",
            "losses": (),
            "seed": None,
        }
        return replace(self, **kept) == replace(other, **kept)


def adapter_name(ref: str) -> str:
    """The adapter as archives know it: a file without the folder that it happens to lie in."""
    place, _, attribute = ref.rpartition(":")
    return f"{Path(place).name if place.endswith('.py') else place}:{attribute}"


def archives_in(folder: Path) -> tuple[Manifest, ...]:
    """Every archive of `folder`, the oldest first.

    Raises:
        BadArchive: one of its folders is none that this version can use.
    """
    found = [
        _read(path)
        for path in folder.iterdir()
        # What begins with a dot was not finished; files beside the archives are the user's.
        if path.is_dir() and not path.name.startswith(".")
    ]
    return tuple(sorted(found, key=lambda manifest: (manifest.recorded, manifest.name)))


def keep_archive(folder: Path, checkpoint: Path, manifest: Manifest) -> Path:
    """Make a new archive in `folder`, whole or not at all; there is none that it replaces."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{uuid.uuid4().hex}"
    try:
        if checkpoint.is_dir():
            shutil.copytree(checkpoint, unfinished / CHECKPOINT)
        else:
            unfinished.mkdir()
            shutil.copyfile(checkpoint, unfinished / CHECKPOINT)
        (unfinished / MANIFEST).write_text(_text(manifest), encoding="utf-8")
        for target in _names(folder, manifest):
            if not target.exists():
                return unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    raise AssertionError("names never end")


def content_of(path: Path) -> str:
    """A digest of a file, or of a folder's names and files; moved as a whole, it stays the same."""
    digest = hashlib.blake2b(digest_size=16)
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(file.relative_to(path).as_posix().encode())
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _names(folder: Path, manifest: Manifest) -> Iterator[Path]:
    moment = "".join(c for c in manifest.recorded[:19] if c.isdigit())
    stem = f"{manifest.adapter.rpartition(':')[2]}-{moment}"
    yield folder / stem
    number = 2
    while True:
        yield folder / f"{stem}-{number}"
        number += 1


def _text(manifest: Manifest) -> str:
    data: dict[str, Any] = {"version": VERSION, **asdict(manifest)}
    del data["name"]
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _read(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data.pop("version")
    except FileNotFoundError:
        raise BadArchive(f"{folder.name} has no {MANIFEST}") from None
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise BadArchive(f"{folder.name}/{MANIFEST} cannot be read ({error!r})") from None
    if not isinstance(version, int) or version > VERSION:
        raise BadArchive(
            f"{folder.name}/{MANIFEST} has version {version}, written by a newer pytest-cplife;"
            f" this one reads up to {VERSION}"
        )
    wanted = {field.name for field in fields(Manifest) if field.default is MISSING} - {"name"}
    if wanted - set(data):
        missing = ", ".join(sorted(wanted - set(data)))
        raise BadArchive(f"{folder.name}/{MANIFEST} cannot be read (it lacks {missing})")
    if not (folder / CHECKPOINT).exists():
        raise BadArchive(f"{folder.name} has no {CHECKPOINT}")
    return Manifest(
        name=folder.name,
        losses=tuple(data.get("losses", ())),
        seed=data.get("seed"),
        **{key: data[key] for key in wanted},
    )
