"""What rank 0 and the agents say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_cplife.launchers.messages import PoolSpec
from pytest_cplife.launchers.pool import Ending


@dataclass(frozen=True, slots=True)
class Here:
    """An agent's first word: where it is."""

    node: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Start:
    """Fork the agent's rank of a new world."""

    world: int
    spec: PoolSpec


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the agent's rank of a world."""

    world: int
    number: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; its number comes back with the answer."""

    number: int
    question: End | Output | Exists


@dataclass(frozen=True, slots=True)
class End:
    """End the agent's rank of a world; answered when nothing is left of it."""

    world: int


@dataclass(frozen=True, slots=True)
class Output:
    """The end of what the agent's rank of a world has printed."""

    world: int


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether the agent's machine has this path."""

    path: str


@dataclass(frozen=True, slots=True)
class Release:
    """Rank 0 is done and ends with this status."""

    status: int


@dataclass(frozen=True, slots=True)
class Died:
    """The agent's rank of a world has ended by itself."""

    world: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Leaving:
    """The agent ends before rank 0 does, and says why."""

    reason: str
