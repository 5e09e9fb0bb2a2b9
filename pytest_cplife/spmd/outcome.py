"""How a test's body ended on one rank, and the note of it that reaches the pytest process."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["passed", "skipped", "xfailed", "failed"]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one rank's body.

    Attributes:
        reason: why it was skipped or expected to fail.
        place: file and line of the ``skip`` or ``xfail``.
        value: what it returned.
        error: the exception, pickled, where it can be.
        shown: pytest's picture of the exception, the same object as for a test without ranks.
        trace: the traceback as Python prints it, from the user's first frame on.
    """

    kind: Kind
    reason: str = ""
    place: tuple[str, int] = ("", 0)
    value: Any = None
    error: bytes = b""
    shown: Any = None
    trace: str = ""


def leave_note(folder: str, rank: int, ended: Ended) -> None:
    """Write down how the rank ended: its call may end otherwise, because of the other ranks."""
    path = Path(folder) / f"rank{rank}"
    try:
        payload = pickle.dumps(ended)
    except Exception:
        payload = pickle.dumps(Ended(ended.kind, ended.reason, ended.place, trace=ended.trace))
    draft = path.with_suffix(".draft")
    with contextlib.suppress(FileNotFoundError):  # the folder is not on this node
        draft.write_bytes(payload)
        draft.rename(path)


def read_notes(folder: Path, size: int) -> dict[int, Ended]:
    """The notes of those ranks that came so far as to write one."""
    notes: dict[int, Ended] = {}
    for rank in range(size):
        with contextlib.suppress(FileNotFoundError):
            notes[rank] = pickle.loads((folder / f"rank{rank}").read_bytes())
    return notes


def read_error(ended: Ended) -> BaseException | None:
    """The exception itself; None where it did not survive the journey."""
    try:
        error = pickle.loads(ended.error)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def told(ends: Mapping[int, Ended]) -> str:
    """Who ended how: ``rank 1 skipped: no such module; ranks 0, 2 passed``."""
    groups: dict[str, list[int]] = {}
    for rank, ended in sorted(ends.items()):
        words = f"{ended.kind}: {ended.reason}" if ended.reason else ended.kind
        groups.setdefault(words, []).append(rank)
    ordered = sorted(groups.items(), key=lambda pair: len(pair[1]))
    return "; ".join(f"{ranks_text(ranks)} {words}" for words, ranks in ordered)


def ranks_text(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
