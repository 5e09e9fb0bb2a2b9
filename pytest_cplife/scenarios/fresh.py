"""Reading a checkpoint as a stranger does: in a new interpreter, without the trainer's code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, set_stage

_PROGRAM = Path(__file__).with_name("stranger.py")
_SECONDS = 120.0


def fresh(rank: Rank, order: Order) -> None:
    """Read what was saved with nothing but torch."""
    stage = set_stage(rank, order)
    assert order.source is not None
    if order.source.is_dir():
        stage.recorder.absent("the checkpoint is a directory", "told")
        return
    if type(stage.adapter).read_checkpoint is not LifecycleAdapter.read_checkpoint:
        why = "the adapter reads checkpoints in a way of its own (read_checkpoint)"
        stage.recorder.absent(why, "told")
        return
    declared = stage.adapter.payload_objects
    named = () if isinstance(declared, bool) else declared
    allowed = {name.partition(".")[0] for name in named}
    absent = {_package(order.adapter), "pytest_cplife"} - allowed
    with stage.recorder.phase("read in a new interpreter"):
        told = _read(order.source, sorted(absent), order.folder / "workdir")
    stage.recorder.fact("told", told)


def _package(adapter: str) -> str:
    """The top-level package that the adapter is in; the name of its file where it is none."""
    place = adapter.rpartition(":")[0]
    return Path(place).stem if place.endswith(".py") else place.partition(".")[0]


def _read(path: Path, absent: list[str], folder: Path) -> dict[str, Any]:
    # As text, not as a file: a program's own folder would stand first on its path.
    command = [sys.executable, "-c", _PROGRAM.read_text(encoding="utf-8"), str(path.resolve())]
    done = subprocess.run(
        [*command, *absent], cwd=folder, capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"the interpreter ended with {done.returncode}: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
