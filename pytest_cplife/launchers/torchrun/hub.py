"""Rank 0's side of the launcher: it meets the agents, asks them for ranks, and lets them go."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_cplife.launchers.base import RunEnded
from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.messages import Place, PoolSpec
from pytest_cplife.launchers.torchrun.given import Given
from pytest_cplife.launchers.torchrun.orders import (
    Ask,
    End,
    Exists,
    Output,
    Release,
    Signal,
    Start,
)
from pytest_cplife.launchers.torchrun.switchboard import AgentLink, Switchboard, wait_until

_ASK_SECONDS = 15.0
_START_SECONDS = 60.0
_LATECOMER_SECONDS = 20.0
_LEAVE_SECONDS = 10.0
# When an agent is lost or torchrun ends everybody, who was first shows within this time.
_CULPRIT_SECONDS = 1.0


class Hub:
    """The agents of all ranks. Open from before collection until pytest has its exit status."""

    def __init__(self, given: Given, board: Switchboard, agent_pid: int, timeout: float) -> None:
        self.given = given
        self._board = board
        self._agent_pid = agent_pid
        self._timeout = timeout
        self._numbers = itertools.count(1)
        self._before = signal.signal(signal.SIGTERM, self._asked_to_end)
        self.owner = os.getpid()

    def gather(self) -> None:
        """Wait until every agent has come.

        Raises:
            RunEnded: one did not in time, or has gone.
        """
        self._wait(lambda: not self._missing(), self._timeout, self._who_is_missing)

    def places(self, size: int) -> tuple[Place, ...]:
        """Where the ranks of a world of `size` run: its nodes and local ranks are its own."""
        nodes = [self._node(rank) for rank in range(size)]
        order = list(dict.fromkeys(nodes))
        return tuple(
            Place(nodes[:rank].count(node), nodes.count(node), order.index(node))
            for rank, node in enumerate(nodes)
        )

    def start(self, world: int, spec: PoolSpec) -> list[tuple[Channel, Channel]]:
        """Start the ranks of a world; their channels in rank order."""
        self.gather()
        for rank in range(spec.size):
            self._board.say(rank, Start(world, spec))
        found: dict[int, tuple[Channel, Channel]] = {}

        def complete() -> bool:
            for rank in range(spec.size):
                channels = None if rank in found else self._board.take(world, rank)
                if channels is not None:
                    found[rank] = channels
            return len(found) == spec.size

        def missing() -> str:
            late = [str(self._board.links[r]) for r in range(spec.size) if r not in found]
            return f"{', '.join(late)} could not start a process that reaches rank 0"

        self._wait(complete, _START_SECONDS, missing)
        return [found[rank] for rank in range(spec.size)]

    def number(self) -> int:
        """A number that nothing else has: of a world or a question."""
        return next(self._numbers)

    def look(self) -> None:
        """Take what the agents have said.

        Raises:
            RunEnded: one has gone.
        """
        self._board.look(0.0)
        self._check()

    def ending(self, world: int, rank: int) -> Any:
        return self._board.endings.get((world, rank))

    def send_signal(self, world: int, rank: int, number: int) -> None:
        self._board.say(rank, Signal(world, number))

    def output(self, world: int, rank: int) -> str:
        return str(self._ask([rank], Output(world)).get(rank, ""))

    def end(self, world: int, size: int) -> None:
        """End the ranks of a world, wherever an agent can still be reached."""
        self._ask(range(size), End(world), strict=False)
        self._board.forget(world)

    def check_folder(self, folder: Path) -> None:
        """Make sure that all machines see `folder`.

        Raises:
            RunEnded: some do not.
        """
        self.gather()
        seen = self._ask(range(self.given.world_size), Exists(str(folder)))
        blind = [str(self._board.links[rank]) for rank, sees in sorted(seen.items()) if not sees]
        if blind:
            raise RunEnded(
                f"rank 0's folder {folder} is not to be seen by {', '.join(blind)}; point TMPDIR "
                "to a folder that all nodes share"
            )

    def close(self, status: int, *, wait: bool = True) -> None:
        """Let every agent go, and end this rank's own.

        Args:
            status: of the pytest run.
            wait: give agents that have not come yet the time to, so that they are let go too.
        """
        self.restore_signals()
        if wait and not self._board.lost:
            wait_until(self._board, lambda: not self._missing(), _LATECOMER_SECONDS)
        for rank in self._board.links:
            self._board.say(rank, Release(status))
        links = self._board.links.values()
        wait_until(self._board, lambda: all(link.lost for link in links), _LEAVE_SECONDS)
        self._board.close()
        self._reap()

    def restore_signals(self) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def agent_of(self, rank: int) -> int:
        """The process id of a rank's agent, on its machine."""
        self.gather()
        here = self._board.links[rank].here
        assert here is not None
        return here.pid

    def _reap(self) -> None:
        end = time.monotonic() + _LEAVE_SECONDS
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            while os.waitpid(self._agent_pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > end:
                    os.kill(self._agent_pid, signal.SIGKILL)
                time.sleep(0.01)

    def _ask(self, ranks: Iterable[int], question: Any, *, strict: bool = True) -> dict[int, Any]:
        """The answers of the agents of `ranks`; unless `strict`, of those that can be reached."""
        number, links = self.number(), [self._board.links[rank] for rank in ranks]
        answers = self._board.answers[number] = {}
        try:
            for link in links:
                self._board.say(link.rank, Ask(number, question))

            def silent() -> list[AgentLink]:
                return [link for link in links if link.rank not in answers and not link.lost]

            def text() -> str:
                return f"{', '.join(map(str, silent()))} does not answer"

            if strict:
                self._wait(lambda: len(answers) == len(links), _ASK_SECONDS, text)
            elif not wait_until(self._board, lambda: not silent(), _ASK_SECONDS):
                for link in silent():
                    link.lost = "does not answer"
        finally:
            del self._board.answers[number]
        return answers

    def _wait(self, done: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
        def settled() -> bool:
            self._check()
            return done()

        if not wait_until(self._board, settled, seconds):
            raise RunEnded(otherwise())

    def loss(self) -> str:
        """Which agents have gone, in words."""
        self._board.look(0.0)
        return self._lost()

    def _lost(self) -> str:
        return "; ".join(f"{link} {link.lost}" for link in self._board.lost)

    def _check(self) -> None:
        if self._board.lost:
            raise RunEnded(self._lost())

    def _missing(self) -> list[int]:
        links = self._board.links
        present = {rank for rank, link in links.items() if link.here is not None}
        return [rank for rank in range(self.given.world_size) if rank not in present]

    def _who_is_missing(self) -> str:
        missing = self._missing()
        return (
            f"{self.given.starter} was to start {self.given.world_size} ranks, but rank"
            f"{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} did not come within "
            f"{self._timeout:g} s"
        )

    def _node(self, rank: int) -> int:
        here = self._board.links[rank].here
        return 0 if here is None else here.node

    def _asked_to_end(self, number: int, frame: FrameType | None) -> None:
        """torchrun ends every rank when one has died; say which one that was."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end, gone = time.monotonic() + _CULPRIT_SECONDS, self._board.closed_now()
        while not gone and time.monotonic() < end:
            time.sleep(0.05)
            gone = self._board.closed_now()
        told = "; ".join(f"{link} has died" for link in gone)
        raise RunEnded(told or f"{self.given.starter} has ended the run (SIGTERM)")
