"""Plain checkpoints that have decayed, and one of a later version, each offered to a run."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.evidence.folders import largest_file
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import (
    NothingToEdit,
    editable,
    heard,
    offer,
    offer_edits,
)
from pytest_cplife.scenarios.meeting import meeting
from pytest_cplife.scenarios.order import Order, Stage, set_stage

_VERSION = re.compile(r"((checkpoint|ckpt|file|format|payload|schema|state)_?)?version")
_LOCAL_HEADER = 30
"""Bytes of a record's header in a zip archive, without its name and extra field."""


def spoiled(rank: Rank, order: Order) -> None:
    """Load copies of a checkpoint of which something is wrong, each in a run of its own."""
    stage = set_stage(rank, order)
    for name, spoil in SPOILS.items():
        copy = order.output.with_name(name.replace(" ", "-"))
        if rank.rank == 0:
            with stage.recorder.phase("spoil"):
                stage.recorder.fact(f"spoiled {name}", _spoiled_copy(order, copy, spoil))
        run = stage.start()
        with meeting() as all_ranks:
            all_ranks.wait()
            stage.recorder.moment(f"{name}: before", run)
            with stage.recorder.phase("offer a spoiled file"):
                outcome = offer(lambda copy=copy, run=run: run.load(copy), run)  # type: ignore[misc]
                all_ranks.wait()
        stage.recorder.fact(name, outcome)
        stage.recorder.moment(f"{name}: after", run)
        stage.close(run)
    with heard() as told:
        offer_edits(stage, {"a later version": _later_version})
    stage.recorder.fact("told", [text for text in told if "version" in text.lower()])


def _spoiled_copy(order: Order, copy: Path, spoil: Callable[[Path], None]) -> str:
    """Copy the order's source and spoil its largest file; that file's name."""
    source = order.source
    assert source is not None
    if source.is_dir():
        shutil.copytree(source, copy)
        files = [file for file in copy.rglob("*") if file.is_file()]
        victim = max(files, key=lambda file: file.stat().st_size)
    else:
        victim = Path(shutil.copyfile(source, copy))
    spoil(victim)
    return victim.name


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def flip_a_bit(path: Path) -> None:
    """Flip one bit of the file's content, where most of it is."""
    with path.open("r+b") as file:
        position = _inside(path)
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x10]))


def _inside(path: Path) -> int:
    """The middle of the largest tensor in an archive of torch's, or else of the file.

    Between records there is padding, in which a flipped bit harms nobody.
    """
    if not zipfile.is_zipfile(path):
        return largest_file(path) // 2
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        record = max(
            archive.infolist(), key=lambda item: ("/data/" in item.filename, item.compress_size)
        )
        file.seek(record.header_offset + _LOCAL_HEADER - 4)
        lengths = file.read(4)
    before = sum(int.from_bytes(part, "little") for part in (lengths[:2], lengths[2:]))
    return record.header_offset + _LOCAL_HEADER + before + record.compress_size // 2


def _later_version(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """Raise the version that the file says it is of."""
    payload: Any = view.payload
    for key in payload if isinstance(payload, dict) else ():
        if isinstance(key, str) and _VERSION.fullmatch(key.lower()):
            later = _later(payload[key])
            if later is not None:
                editable(payload)[key] = later
                return f"{key} {later}"
    raise NothingToEdit("the file's top level has no entry that says its version")


def _later(version: Any) -> Any:
    if isinstance(version, int) and not isinstance(version, bool):
        return version + 100
    if isinstance(version, str) and re.match(r"\d", version):
        return f"{int(re.findall(r'[0-9]+', version)[0]) + 100}.0.0"
    return None


SPOILS: dict[str, Callable[[Path], None]] = {
    "nothing in it": lambda path: _cut(path, 0),
    "half of it missing": lambda path: _cut(path, largest_file(path) // 2),
    "its last byte missing": lambda path: _cut(path, largest_file(path) - 1),
    "a flipped bit": flip_a_bit,
}
"""By name: what is wrong with the copy's largest file."""
