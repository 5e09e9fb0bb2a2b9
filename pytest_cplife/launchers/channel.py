"""Messages between the parent and a rank: a socket pair on which no call waits without a limit."""

from __future__ import annotations

import pickle
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<Q")


class Channel:
    """One end of a socket pair that carries byte strings."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """The parent's end and the rank's."""
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, payload: bytes, timeout: float | None) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other end did not take it in `timeout` seconds.
            OSError: the other end is gone.
        """
        self._sock.settimeout(timeout)
        self._sock.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self, timeout: float | None) -> bytes:
        """Receive one message; None waits as long as the other end lives, which only ranks may.

        Raises:
            TimeoutError: it was not complete in `timeout` seconds.
            EOFError: the other end is gone.
        """
        end = None if timeout is None else time.monotonic() + timeout
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, end))
        return self._exactly(length, end)

    def _exactly(self, count: int, end: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            left = None if end is None else max(end - time.monotonic(), 1e-3)
            self._sock.settimeout(left)
            try:
                part = self._sock.recv(min(count - len(parts), 1 << 20))
            except ConnectionError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def send_object(self, value: Any, timeout: float | None) -> None:
        self.send(pickle.dumps(value), timeout)

    def receive_object(self, timeout: float | None) -> Any:
        return pickle.loads(self.receive(timeout))

    def close(self) -> None:
        self._sock.close()
