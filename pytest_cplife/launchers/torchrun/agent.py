"""The agent of one rank that torchrun or SLURM started: it forks ranks, and ends them again."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.folders import PrivateFolder
from pytest_cplife.launchers.messages import PoolSpec
from pytest_cplife.launchers.pool import RankProcess, log_tail, quiet_fork
from pytest_cplife.launchers.torchrun.given import Given
from pytest_cplife.launchers.torchrun.orders import (
    Answer,
    Ask,
    Died,
    End,
    Exists,
    Here,
    Leaving,
    Output,
    Release,
    Signal,
    Start,
)
from pytest_cplife.launchers.torchrun.wire import Address, Hello, Purpose, connect
from pytest_cplife.launchers.warm import warm_parent
from pytest_cplife.launchers.worker import serve

_TICK = 0.05
_SEND_SECONDS = 10.0
# torchrun kills all its processes when one has died. Rank 0 is to see which one was first, so the
# others wait for what it says; torchrun gives them 30 s.
_LINGER_SECONDS = 3.0


@dataclass(slots=True)
class _Member:
    """The agent's rank of one world."""

    process: RankProcess
    spec: PoolSpec
    folder: PrivateFolder
    told: bool = False


class Agent:
    """Serves rank 0 until it is done; see :meth:`serve`."""

    def __init__(self, given: Given, address: Address) -> None:
        self._given = given
        self._address = address
        self._members: dict[int, _Member] = {}
        self._leave_at = float("inf")
        self._link = connect(address, Hello(0, given.rank, Purpose.AGENT))

    def serve(self) -> int:
        """Serve; the status that this process is to end with."""
        # An interrupt at the terminal reaches every process; what follows from it rank 0 decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._asked_to_end)
        try:
            return self._serve()
        except (EOFError, OSError):
            # On rank 0's node torchrun tells of it; on the others nobody else does.
            if self._leave_at == float("inf"):
                me = f"rank {self._given.rank} on {socket.gethostname()}"
                print(f"cplife: {me} ends: rank 0 has gone", file=sys.stderr, flush=True)
            return 1
        finally:
            for number in list(self._members):
                self._end(number)

    def _asked_to_end(self, number: int, frame: FrameType | None) -> None:
        self._leave_at = min(self._leave_at, time.monotonic() + _LINGER_SECONDS)

    def _serve(self) -> int:
        self._say(Here(self._given.node, socket.gethostname(), os.getpid()))
        try:
            warm_parent()
        except Exception as error:
            self._say(Leaving(f"it cannot fork ranks: {error}"))
            return 1
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        while time.monotonic() < self._leave_at:
            if poll.poll(_TICK * 1000):
                order = self._link.receive_object(_SEND_SECONDS)
                if isinstance(order, Release):
                    # torchrun ends everybody when rank 0 has failed, and would blame those that
                    # it finds on their way out.
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    return self._status(order)
                self._obey(order)
            self._tell_of_the_dead()
        self._say(Leaving("it was asked to end (SIGTERM)"))
        return 1

    def _status(self, order: Release) -> int:
        """On rank 0's node rank 0 alone fails, so that torchrun names it and no other.

        On another node somebody has to. Where all of its ranks succeed, torchrun waits for the
        torchrun of rank 0, which does not come when its own have failed; then it reports an error
        of its own, and success.
        """
        return 0 if self._given.node == 0 else order.status

    def _obey(self, order: Any) -> None:
        match order:
            case Start(world=world, spec=spec):
                self._start(world, spec)
            case Signal(world=world, number=number):
                if world in self._members:
                    self._members[world].process.send_signal(number)
            case Ask(number=number, question=question):
                self._say(Answer(number, self._answer(question)))

    def _answer(self, question: End | Output | Exists) -> Any:
        match question:
            case End(world=world):
                return self._end(world)
            case Output(world=world):
                member = self._members.get(world)
                return "" if member is None else log_tail(member.spec, self._given.rank)
            case Exists(path=path):
                return Path(path).exists()

    def _start(self, world: int, spec: PoolSpec) -> None:
        rank = self._given.rank
        folder = PrivateFolder()
        own = replace(spec, folder=str(folder.path))
        control = connect(self._address, Hello(world, rank, Purpose.CONTROL))
        watch = connect(self._address, Hello(world, rank, Purpose.WATCH))
        agent = os.getpid()
        with quiet_fork():
            pid = os.fork()
        if pid == 0:
            self._link.close()
            serve(rank, own, control, watch, agent)
        # The rank's alone now, so that rank 0 sees them close when it dies.
        control.close()
        watch.close()
        self._members[world] = _Member(RankProcess(rank, pid, control, watch), own, folder)

    def _tell_of_the_dead(self) -> None:
        for world, member in self._members.items():
            ending = None if member.told else member.process.poll()
            if ending is not None:
                member.told = True
                self._say(Died(world, ending))

    def _end(self, world: int) -> None:
        member = self._members.pop(world, None)
        if member is not None:
            member.process.end()
            member.folder.remove()

    def _say(self, word: Any) -> None:
        self._link.send_object(word, _SEND_SECONDS)


def fork_agent(given: Given, address: Address, listener: Channel | socket.socket) -> int:
    """The agent of rank 0, beside the pytest process; the pid.

    Forked before any thread runs and before any test is imported, so that its ranks come from the
    same state as everybody else's.
    """
    with quiet_fork():
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            listener.close()
            status = Agent(given, address).serve()
        finally:
            os._exit(status)
    return pid
