"""Reading a checkpoint as a stranger does: in a new interpreter, without the trainer's code."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, set_stage

_PROGRAM = Path(__file__).with_name("stranger.py")
SECONDS = 240.0
"""For the interpreter to import torch, and again for it to read the file."""


class NotStarted(Exception):
    """The new interpreter is not ready in time: a busy machine, and no fault of the trainer's."""


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
        try:
            told = read(order.source, sorted(absent), order.folder / "workdir")
        except NotStarted as late:
            stage.recorder.absent(str(late), "told")
        else:
            stage.recorder.fact("told", told)


def _package(adapter: str) -> str:
    """The top-level package that the adapter is in; the name of its file where it is none."""
    place = adapter.rpartition(":")[0]
    return Path(place).stem if place.endswith(".py") else place.partition(".")[0]


def read(
    path: Path, absent: list[str], folder: Path, *, seconds: float = SECONDS
) -> dict[str, Any]:
    """What the program of `stranger` tells of the file.

    Args:
        absent: top-level packages that it cannot import.
        folder: where it runs, and its output is kept.
        seconds: how long it may take to be ready, and then to read.

    Raises:
        NotStarted: it is not ready in time.
        RuntimeError: it ends without an answer, or is not through with the file in time.
    """
    # As text, not as a file: a program's own folder would stand first on its path.
    command = [sys.executable, "-c", _PROGRAM.read_text(encoding="utf-8"), str(path.resolve())]
    answer, errors = folder / "stranger.out", folder / "stranger.err"
    with answer.open("wb") as out, errors.open("wb") as err:
        child = subprocess.Popen([*command, *absent], cwd=folder, stdout=out, stderr=err)
        try:
            _wait_until_ready(child, answer, seconds)
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the file is not read within {seconds:g} s") from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if code:
        text = errors.read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"the interpreter ended with {code}: {text[-2000:]}")
    told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8").splitlines()[-1])
    return told


def _wait_until_ready(child: subprocess.Popen[bytes], answer: Path, seconds: float) -> None:
    """Wait for the program's first line, which it writes when it has imported torch."""
    deadline = time.monotonic() + seconds
    while child.poll() is None and not answer.stat().st_size:
        if time.monotonic() > deadline:
            raise NotStarted(
                f"a new interpreter has not imported torch within {seconds:g} s on this machine"
            )
        time.sleep(0.02)
