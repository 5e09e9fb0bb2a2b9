"""What a folder of checkpoints holds: named by a digest, kept, and put back."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

_TRIES = 4
_CHUNK = 1 << 24
_CHANGING = re.compile(r"[0-9a-f]{8,}|\d+")


@dataclass(frozen=True, slots=True)
class FolderState:
    """A folder at one instant.

    Attributes:
        name: which instant, such as ``"generation 2, rank 0 before renaming checkpoint"``.
        tree: a digest of all that was in the folder; its copy goes by this name.
        checkpoint: a digest of what was at the path of the checkpoint, "" where nothing was.
        fresh: whether there had never been a whole checkpoint at that path.
        moment: when, on the clock that the ranks of a machine share.
        decisive: whether a rename or a removal was to come.
    """

    name: str
    tree: str
    checkpoint: str
    fresh: bool
    moment: float = 0.0
    decisive: bool = False


@dataclass(frozen=True, slots=True)
class StateBook:
    """Copies of a folder by the digest of what is in it, and lists of those to look at."""

    root: Path

    def keep(self, folder: Path) -> str:
        """Copy `folder` as it is now; the digest, "" where other ranks would not hold still."""
        self.root.mkdir(exist_ok=True)
        for _ in range(_TRIES):
            copy = self.root / f"new-{uuid.uuid4().hex}"
            try:
                tree = tree_digest(folder)
                if (self.root / tree).is_dir():
                    return tree
                shutil.copytree(folder, copy, symlinks=True)
                # The same before and after: so it was what the copy is in between.
                if tree_digest(folder) == tree:
                    with contextlib.suppress(OSError):  # another rank has just kept the same
                        copy.rename(self.root / tree)
                    return tree
            except (OSError, shutil.Error):
                continue
            finally:
                shutil.rmtree(copy, ignore_errors=True)
        return ""

    def put_back(self, tree: str, folder: Path) -> None:
        """Make `folder` what it was."""
        for entry in list(folder.iterdir()):
            _remove(entry)
        for entry in (self.root / tree).iterdir():
            _copy(entry, folder / entry.name)

    def put_back_one(self, tree: str, path: Path) -> None:
        """Make `path` what it was, and let the rest of its folder be."""
        _remove(path)
        _copy(self.root / tree / path.name, path)

    def write(self, states: Iterable[FolderState], name: str = "states") -> None:
        text = json.dumps([asdict(state) for state in states])
        self.root.mkdir(exist_ok=True)
        (self.root / f"{name}.json").write_text(text, encoding="utf-8")

    def read(self, name: str = "states") -> list[FolderState]:
        text = (self.root / f"{name}.json").read_text(encoding="utf-8")
        return [FolderState(**entry) for entry in json.loads(text)]


def tree_digest(path: Path) -> str:
    """A digest of names and contents at and below `path`, "" where there is nothing."""
    if not os.path.lexists(path):
        return ""
    digest = hashlib.blake2b(digest_size=12)
    for entry in [path, *sorted(path.rglob("*"))] if _is_folder(path) else [path]:
        name = "" if entry == path else str(entry.relative_to(path))
        if entry.is_symlink():
            digest.update(f"link {name}\0{entry.readlink()}\0".encode())
        elif entry.is_dir():
            digest.update(f"folder {name}\0".encode())
        elif entry.is_file():
            digest.update(f"file {name}\0{entry.stat().st_size}\0".encode())
            with entry.open("rb") as file:
                while part := file.read(_CHUNK):
                    digest.update(part)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    if _is_folder(source):
        shutil.copytree(source, target, symlinks=True)
    elif os.path.lexists(source):
        shutil.copy2(source, target, follow_symlinks=False)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def unnumbered(name: str) -> str:
    """A file's name without what changes in it from save to save."""
    return _CHANGING.sub("#", name)


def names_in(folder: Path) -> Counter[str]:
    """Names at any depth, what changes from save to save in them left out."""
    return Counter(unnumbered(str(entry.relative_to(folder))) for entry in folder.rglob("*"))


def largest_file(path: Path) -> int:
    """Bytes of the largest file at or below `path`, 0 where there is none."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return max((each.stat().st_size for each in files), default=0)


def tree_size(path: Path) -> int:
    """Bytes of all files at and below `path`."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.lstat().st_size for each in files)
