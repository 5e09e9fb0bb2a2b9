"""What the pickles of a checkpoint would execute, found without unpickling them."""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint


@dataclass(frozen=True, slots=True)
class PickledFile:
    """One file that ``torch.save`` wrote.

    Attributes:
        name: relative to the checkpoint, "" where the checkpoint is this file.
        foreign: qualified names in its pickle that ``weights_only=True`` does not allow.
        refusal: what ``torch.load(weights_only=True)`` says, "" where it reads the file.
    """

    name: str
    foreign: tuple[str, ...]
    refusal: str


def pickled_files(path: Path) -> list[PickledFile]:
    """Every file of the checkpoint `path` that is in the format of ``torch.save``."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return [_look(file, path) for file in files if zipfile.is_zipfile(file)]


def _look(file: Path, root: Path) -> PickledFile:
    name = "" if file == root else file.relative_to(root).as_posix()
    try:
        foreign = tuple(get_unsafe_globals_in_checkpoint(file))
    except (RuntimeError, pickle.UnpicklingError) as error:
        return PickledFile(name, (), f"{type(error).__name__}: {error}")
    refusal = ""
    if not foreign:
        try:
            torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError) as error:
            refusal = f"{type(error).__name__}: {error}"
    return PickledFile(name, foreign, refusal)
