"""A thread in every rank that speaks for it while its main thread is busy or blocked."""

from __future__ import annotations

import os
import signal
import threading

from pytest_cplife.launchers.channel import Channel


class Watcher(threading.Thread):
    """Ends the rank, and all that it has started, when the parent is gone."""

    def __init__(self, channel: Channel, parent: int) -> None:
        super().__init__(name="cplife-watcher", daemon=True)
        self._channel = channel
        self._parent = parent

    def run(self) -> None:
        while os.getppid() == self._parent:
            try:
                self._channel.receive(1.0)
            except TimeoutError:
                continue
            except (EOFError, OSError):
                break
        os.killpg(0, signal.SIGKILL)
