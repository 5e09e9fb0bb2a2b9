"""What the run says last, and what it shows a person who watches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

import torch

from .formats import FORMAT, FORMAT_VERSION
from .placeholder import placeholder_names
from .trainer import Trainer


def lifecycle_report(run: Trainer, differing: Sequence[str] | None) -> str:
    """The four facts that a reader of the log needs before the checkpoint is used.

    Args:
        run: the live run.
        differing: names that a resumed run had otherwise than the uninterrupted one; empty
            for none, None where it was not tried.
    """
    mesh = ",".join(f"{name}={run.topology.size(name)}" for name in run.topology.names)
    result = "not tried"
    if differing is not None:
        result = "bitwise equal"
    if differing:
        result = f"{len(differing)} tensors differ, first {differing[0]!r}"
    lines = {
        "framework": f"torch {torch.__version__}, mesh {mesh or 'serial'}",
        "checkpoint format": f"{FORMAT} {FORMAT_VERSION} (plain file), DCP directory",
        "placeholders": ", ".join(placeholder_names(run.model)) or "none",
        "stop-and-go": result,
    }
    return "\n".join(f"{name + ':':<19}{value}" for name, value in lines.items())


class Progress:
    """A bar on a terminal; nothing in a log file or on other ranks."""

    def __init__(self, total: int, visible: bool, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.total = total
        self.visible = visible and self.stream.isatty()

    def show(self, done: int, loss: float) -> None:
        """Draw the bar after step `done`."""
        if not self.visible:
            return
        filled = 30 * done // max(self.total, 1)
        bar = "#" * filled + "." * (30 - filled)
        end = "\n" if done == self.total else ""
        self.stream.write(f"\r[{bar}] step {done}/{self.total} loss {loss:.4f}{end}")
        self.stream.flush()
