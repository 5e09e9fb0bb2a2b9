"""What the making of a call needs to know of ranks, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.messages import PoolSpec
from pytest_cplife.launchers.pool import Ending


class ServedRank(Protocol):
    """One live rank, seen from the pytest process."""

    rank: int
    control: Channel
    watch: Channel
    ending: Ending | None
    same_clock: bool
    """Whether moments that it tells are on this process's monotonic clock."""

    def poll(self) -> Ending | None:
        """How the process ended, None while it lives."""
        ...

    def send_signal(self, number: int) -> None: ...


class ServedPool(Protocol):
    """The ranks of one world."""

    spec: PoolSpec
    owner: int
    """The process that made it; a fork of that process may not use it."""

    @property
    def ranks(self) -> Sequence[ServedRank]: ...

    @property
    def alive(self) -> bool: ...

    def output(self, rank: int) -> str:
        """The end of what `rank` has written in its last call."""
        ...

    def close(self) -> None:
        """End every rank; may be called twice."""
        ...
