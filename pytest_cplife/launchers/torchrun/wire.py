"""Connections between rank 0, the agents and their ranks: TCP, with a token before anything else.

What is sent is pickled, so nobody may connect who does not know the token. It is handed out
through the store at which the processes meet.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from pytest_cplife.launchers.channel import Channel

_TOKEN = 32
_HELLO = struct.Struct(f"<{_TOKEN}siiB")
# A machine that loses power closes nothing; after this long its connections count as closed.
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 4
_CONNECT_SECONDS = 20.0


class Purpose(IntEnum):
    """What a connection is for."""

    AGENT = 0
    CONTROL = 1
    WATCH = 2


@dataclass(frozen=True, slots=True)
class Hello:
    """The first thing on every connection: which world (0 for an agent), which rank, what for."""

    world: int
    rank: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 listens, and what has to be said there."""

    host: str
    port: int
    token: bytes

    def __str__(self) -> str:
        return f"{self.port} {self.token.hex()} {self.host}"

    @classmethod
    def parse(cls, text: str) -> Address:
        port, token, host = text.split(" ", 2)
        return cls(host, int(port), bytes.fromhex(token))


def listen(host: str) -> tuple[socket.socket, Address]:
    """Listen where `host` leads, which should be this machine; on all interfaces otherwise."""
    listener = None
    for family, _, _, _, place in _resolved(host):
        try:
            listener = socket.create_server(place[:2], family=family, backlog=256)
            break
        except OSError:
            continue
    if listener is None:
        listener = socket.create_server(("", 0), backlog=256)
    listener.setblocking(False)
    return listener, Address(host, int(listener.getsockname()[1]), secrets.token_bytes(_TOKEN))


def _resolved(host: str) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    try:
        return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)  # type: ignore[return-value]
    except OSError:
        return []


def connect(address: Address, hello: Hello) -> Channel:
    """Connect to rank 0.

    Raises:
        OSError: it does not listen any more, or cannot be reached.
    """
    sock = socket.create_connection((address.host, address.port), timeout=_CONNECT_SECONDS)
    _tune(sock)
    sock.sendall(_HELLO.pack(address.token, hello.world, hello.rank, hello.purpose))
    return Channel(sock)


def receive_hello(sock: socket.socket, token: bytes) -> Hello | None:
    """Who has connected; None for a stranger, whose connection is closed."""
    _tune(sock)
    try:
        sock.settimeout(1.0)
        said = b""
        while len(said) < _HELLO.size:
            part = sock.recv(_HELLO.size - len(said))
            if not part:
                raise EOFError
            said += part
        theirs, world, rank, purpose = _HELLO.unpack(said)
        if hmac.compare_digest(theirs, token):
            return Hello(world, rank, Purpose(purpose))
    except (OSError, EOFError, ValueError):
        pass
    sock.close()
    return None


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if hasattr(socket, name):  # not every system has them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
