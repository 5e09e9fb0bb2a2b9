"""Rank 0's connections: who has connected, what agents say, and which of them are gone."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from typing import Any

from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.pool import Ending
from pytest_cplife.launchers.torchrun.orders import Answer, Died, Here, Leaving
from pytest_cplife.launchers.torchrun.wire import Address, Hello, Purpose, receive_hello

_RECEIVE_SECONDS = 10.0
_SEND_SECONDS = 10.0
# Not in the select module of every system.
_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


@dataclass(slots=True)
class AgentLink:
    """One agent, as rank 0 knows it; `here` is None until its first word has come."""

    rank: int
    channel: Channel
    here: Here | None = None
    lost: str = ""
    """Why it can no longer be reached."""

    def __str__(self) -> str:
        if self.here is None:
            return f"rank {self.rank}"
        return f"rank {self.rank} on {self.here.host} (process {self.here.pid})"


class Switchboard:
    """All of them in one place, looked at whenever rank 0 waits for anything."""

    def __init__(self, listener: socket.socket, address: Address) -> None:
        self.listener = listener
        self.address = address
        self.links: dict[int, AgentLink] = {}
        self.endings: dict[tuple[int, int], Ending] = {}
        """How ranks have ended by themselves, by world and rank."""
        self.answers: dict[int, dict[int, Any]] = {}
        """By the question's number, then by rank; only what is waited for is kept."""
        self._waiting: dict[Hello, Channel] = {}
        self._unknown: dict[int, socket.socket] = {}

    @property
    def lost(self) -> list[AgentLink]:
        return [link for link in self.links.values() if link.lost]

    def look(self, seconds: float) -> None:
        """Take what has come, or comes within `seconds`."""
        poll = select.poll()
        poll.register(self.listener.fileno(), select.POLLIN)
        live = {link.channel.fileno(): link for link in self.links.values() if not link.lost}
        for number in (*self._unknown, *live):
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(seconds * 1000):
            if number in live:
                self._hear(live[number])
            elif number in self._unknown:
                self._file(self._unknown.pop(number))
            else:
                self._accept()

    def closed_now(self) -> list[AgentLink]:
        """Agents whose connections have closed, without reading from any of them.

        A signal handler may ask in the middle of a `look`.
        """
        poll = select.poll()
        live = {link.channel.fileno(): link for link in self.links.values() if not link.lost}
        for number in live:
            poll.register(number, _CLOSED)
        return [live[number] for number, event in poll.poll(0) if event & _CLOSED]

    def take(self, world: int, rank: int) -> tuple[Channel, Channel] | None:
        """The two channels of a rank that has connected."""
        keys = [Hello(world, rank, purpose) for purpose in (Purpose.CONTROL, Purpose.WATCH)]
        if not all(key in self._waiting for key in keys):
            return None
        return self._waiting.pop(keys[0]), self._waiting.pop(keys[1])

    def say(self, rank: int, word: Any) -> None:
        """Send a word to an agent; one that is gone by now is found out by `look`."""
        link = self.links[rank]
        if not link.lost:
            try:
                link.channel.send_object(word, _SEND_SECONDS)
            except TimeoutError:
                link.lost = "does not answer"
            except OSError:
                link.lost = "has died"

    def forget(self, world: int) -> None:
        """Drop what is kept of a world that is over."""
        for key in [key for key in self._waiting if key.world == world]:
            self._waiting.pop(key).close()
        self.endings = {key: end for key, end in self.endings.items() if key[0] != world}

    def close(self) -> None:
        self.listener.close()
        for sock in self._unknown.values():
            sock.close()
        for channel in self._waiting.values():
            channel.close()
        for link in self.links.values():
            link.channel.close()

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:  # it has gone again
            return
        self._unknown[sock.fileno()] = sock

    def _file(self, sock: socket.socket) -> None:
        hello = receive_hello(sock, self.address.token)
        if hello is None:
            return
        if hello.purpose is Purpose.AGENT:
            self.links[hello.rank] = AgentLink(hello.rank, Channel(sock))
        else:
            self._waiting[hello] = Channel(sock)

    def _hear(self, link: AgentLink) -> None:
        try:
            word = link.channel.receive_object(_RECEIVE_SECONDS)
        except (EOFError, OSError):
            link.lost = "has died"
            return
        match word:
            case Here():
                link.here = word
            case Died(world=world, ending=ending):
                self.endings[world, link.rank] = ending
            case Answer(number=number, value=value) if number in self.answers:
                self.answers[number][link.rank] = value
            case Leaving(reason=reason):
                link.lost = f"has left: {reason}"


def wait_until(board: Switchboard, done: Any, seconds: float) -> bool:
    """Look until `done()`; False where that was not so within `seconds`."""
    end = time.monotonic() + seconds
    while not done():
        left = end - time.monotonic()
        if left <= 0:
            return False
        board.look(min(left, 0.1))
    return True
