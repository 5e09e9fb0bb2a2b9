"""Ask the watchers of a pool what their ranks are doing."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import select
import signal
import time
from collections.abc import Sequence
from typing import TypeVar

from pytest_cplife.launchers.samples import Glance, Sample
from pytest_cplife.launchers.served import ServedPool, ServedRank

_NUMBERS = itertools.count()
_ABORT_SECONDS = 1.0
_Taken = TypeVar("_Taken", bound=Glance)


def glance(
    pool: ServedPool, seconds: float, *, unless: Sequence[ServedRank] = ()
) -> dict[int, Glance]:
    """A glance at every rank that answers in `seconds`; see `look`."""
    return _answers(pool, Glance, seconds, unless)


def look(
    pool: ServedPool, seconds: float, *, unless: Sequence[ServedRank] = ()
) -> dict[int, Sample]:
    """A sample of every rank that answers in `seconds`.

    Args:
        pool: whose ranks to look at.
        seconds: how long to wait for the answers.
        unless: stop early when one of these has something to say on its control channel.
    """
    return _answers(pool, Sample, seconds, unless)


def _answers(
    pool: ServedPool, kind: type[_Taken], seconds: float, unless: Sequence[ServedRank]
) -> dict[int, _Taken]:
    question = f"{kind.__name__} {next(_NUMBERS)}".encode()
    asked: dict[int, ServedRank] = {}
    for rank in pool.ranks:
        if rank.poll() is None:
            with contextlib.suppress(OSError):
                rank.watch.send(question, 0.1)
                asked[rank.watch.fileno()] = rank
    taken: dict[int, _Taken] = {}
    urgent = {rank.control.fileno() for rank in unless}
    end = time.monotonic() + seconds
    while asked and time.monotonic() < end:
        poll = select.poll()
        for number in {*asked, *urgent}:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(20):
            if number in urgent:
                return taken
            rank = asked[number]
            try:
                answered, answer = pickle.loads(rank.watch.receive(1.0))
            except (OSError, EOFError):
                del asked[number]
                continue
            if answered == question:
                del asked[number]
                if isinstance(answer, kind):
                    taken[rank.rank] = answer
    return taken


def abort_for_stacks(ranks: list[ServedRank]) -> None:
    """End ranks that do not answer so that they write their stacks into their output.

    A thread that never lets go of the interpreter keeps the watcher from answering;
    faulthandler's signal handler needs no interpreter.
    """
    for rank in ranks:
        rank.send_signal(signal.SIGABRT)
    end = time.monotonic() + _ABORT_SECONDS
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        time.sleep(0.01)
