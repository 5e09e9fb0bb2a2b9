"""SIGTERM, as a job's time limit sends it, ends the run as an interrupt does.

Python's own reaction is to die at once: no summary, no report, and ranks that have to notice by
themselves. Under the launcher ``torchrun`` the hub has a reaction of its own.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from pytest_cplife.launchers.base import RunEnded

_NAME = "cplife-ending"


def interrupt_on_sigterm(config: pytest.Config) -> None:
    """From now on until `config` is torn down, where nobody else reacts to SIGTERM.

    A worker of xdist's is left alone: the process that reports ends it.
    """
    if hasattr(config, "workerinput") or config.pluginmanager.hasplugin(_NAME):
        return
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _interrupt)
    config.add_cleanup(_restore)
    config.pluginmanager.register(Ending(), _NAME)


class Ending:
    """The end of a run, which a second signal must not cut short."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Reports are being written from here on, and ranks ended; SIGKILL is left to the impatient.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise RunEnded("the run was asked to end (SIGTERM)")


def _restore() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
