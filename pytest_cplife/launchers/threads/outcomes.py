"""How each rank's program ended, and the one failure that is made of several."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_cplife.launchers.base import FailureKind, RankFailure, WorldFailure
from pytest_cplife.launchers.threads.stops import Abandoned, Deadlock, RankStopped
from pytest_cplife.launchers.threads.turns import Wait

_HERE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The rank's program ended with an exception, which still has its frames."""

    error: BaseException

    def kind(self) -> FailureKind:
        if isinstance(self.error, Deadlock | Abandoned):
            return "hung"
        return "exited" if isinstance(self.error, SystemExit) else "raised"

    def failure(self, rank: int) -> RankFailure:
        error = self.error
        if isinstance(error, SystemExit):
            message = f"sys.exit({error.code!r}) during the call"
        else:
            message = _message(error)
        lines = traceback.format_exception(type(error), error, program_frames(error.__traceback__))
        return RankFailure(
            rank=rank,
            kind=self.kind(),
            type_name=type(error).__name__,
            message=message,
            traceback="".join(lines),
            secondary=isinstance(error, Abandoned),
        )


@dataclass(frozen=True, slots=True)
class Hung:
    """The rank still ran at the deadline; `stack` is where."""

    deadline: float
    stack: str
    unending: bool

    def failure(self, rank: int) -> RankFailure:
        message = (
            f"not finished (the deadline was {self.deadline:g} s); the other ranks wait for it"
        )
        if self.unending:
            message += ". Its thread cannot be ended and stays behind"
        return RankFailure(
            rank=rank, kind="hung", type_name="Timeout", message=message, traceback=self.stack
        )


Outcome = Returned | Raised | Hung


def failure_of(outcomes: Mapping[int, Outcome], seconds: float) -> WorldFailure:
    """The failure of a call, the first cause in time at its head.

    Its `__cause__` is the rank's own exception, and its traceback goes on into the rank's frames:
    there a debugger stops that is entered after the fact.

    Args:
        outcomes: by rank, in the order in which the ranks ended.
    """
    failed = {r: o for r, o in outcomes.items() if not isinstance(o, Returned)}
    failures = sorted((o.failure(r) for r, o in failed.items()), key=lambda f: f.secondary)
    failure = WorldFailure(tuple(failures), seconds)
    first = failed[failure.primary.rank]
    if isinstance(first, Raised):
        failure.__cause__ = first.error
        failure = failure.with_traceback(program_frames(first.error.__traceback__))
    return failure


def program_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's own first frame on."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return trace


def stopped(waits: Mapping[int, Wait], outcomes: Mapping[int, Outcome]) -> dict[int, RankStopped]:
    """What ends the ranks of `waits`, none of which can go on."""
    failed = [rank for rank, outcome in outcomes.items() if not isinstance(outcome, Returned)]
    texts = {rank: wait.text() for rank, wait in waits.items()}
    if failed:
        names = ", ".join(map(str, sorted(failed)))
        return {
            r: Abandoned(f"waits in {text}; rank {names} has failed") for r, text in texts.items()
        }
    lines = {r: f"rank {r} waits in {text}" for r, text in texts.items()}
    lines.update({r: f"rank {r} has returned" for r in outcomes})
    table = "\n".join(f"  {lines[rank]}" for rank in sorted(lines))
    verdicts: dict[int, RankStopped] = {
        r: Deadlock(f"waits in {text}") for r, text in texts.items()
    }
    verdicts[min(waits)] = Deadlock(f"no rank can go on:\n{table}")
    return verdicts


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(the exception has no readable message)"
