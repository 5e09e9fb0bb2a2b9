"""A thread in every rank that speaks for it while its main thread is busy or blocked."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading

from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.recorder import Recorder
from pytest_cplife.launchers.samples import TAKEN


def remove_folder(folder: str) -> None:
    """Remove the folder of a pool whose parent can no longer do so. Every rank tries at once."""
    shutil.rmtree(folder, ignore_errors=True)


class Watcher(threading.Thread):
    """Answers the parent's questions, and ends the rank with all that it has started when the
    parent is gone, the pool's folder included."""

    def __init__(self, channel: Channel, parent: int, folder: str, recorder: Recorder) -> None:
        super().__init__(name="cplife-watcher", daemon=True)
        self._channel = channel
        self._parent = parent
        self._folder = folder
        self._recorder = recorder

    def run(self) -> None:
        while os.getppid() == self._parent:
            try:
                question = self._channel.receive(1.0)
            except TimeoutError:
                continue
            except (EOFError, OSError):
                break
            self._answer(question)
        remove_folder(self._folder)
        os.killpg(0, signal.SIGKILL)

    def _answer(self, question: bytes) -> None:
        """The question says what to take, and a number. It comes back with the answer, so that a
        late one is not taken for that of the next question."""
        try:
            take = TAKEN[question.split()[0].decode()]
            answer = pickle.dumps((question, take(self._recorder)))
        except Exception as error:  # stacks change while they are read
            answer = pickle.dumps((question, f"{type(error).__name__}: {error}"))
        try:
            self._channel.send(answer, 5.0)
        except OSError:
            return
