"""Harmless stand-ins for what an unpickler may execute: they only note that they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MARKS: set[str] = set()
"""Names of the marks whose code ran in this process."""


def leave_mark(name: str, value: Any = None) -> Any:
    """What an unpickled :class:`Mark` calls; the result takes its place."""
    MARKS.add(name)
    return value


@dataclass(frozen=True, slots=True)
class Mark:
    """An object whose pickle calls `leave_mark`, and is then `value`."""

    name: str
    value: Any = None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return leave_mark, (self.name, self.value)


@dataclass
class Keepsake:
    """An object that no library allows in files of plain data, as a trainer's own may be."""

    number: int
    text: str


def forget(name: str) -> None:
    """Begin anew: a run that ended early in this process may have left the mark."""
    MARKS.discard(name)


def ran(name: str) -> bool:
    """Whether the mark's code ran since this was last asked."""
    found = name in MARKS
    forget(name)
    return found
