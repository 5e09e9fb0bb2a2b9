"""Ask the watchers of a pool what their ranks are doing."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import select
import signal
import time

from pytest_cplife.launchers.samples import Sample
from pytest_cplife.launchers.served import ServedPool, ServedRank

_NUMBERS = itertools.count()
_ABORT_SECONDS = 1.0


def look(
    pool: ServedPool, seconds: float, *, unless: list[ServedRank] | None = None
) -> dict[int, Sample]:
    """A sample of every rank that answers in `seconds`.

    Args:
        pool: whose ranks to look at.
        seconds: how long to wait for the answers.
        unless: stop early when one of these has something to say on its control channel.
    """
    question = str(next(_NUMBERS)).encode()
    asked: dict[int, ServedRank] = {}
    for rank in pool.ranks:
        if rank.poll() is None:
            with contextlib.suppress(OSError):
                rank.watch.send(question, 0.1)
                asked[rank.watch.fileno()] = rank
    samples: dict[int, Sample] = {}
    urgent = {rank.control.fileno() for rank in unless or []}
    end = time.monotonic() + seconds
    while asked and time.monotonic() < end:
        poll = select.poll()
        for number in {*asked, *urgent}:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(20):
            if number in urgent:
                return samples
            rank = asked[number]
            try:
                answered, sample = pickle.loads(rank.watch.receive(1.0))
            except (OSError, EOFError):
                del asked[number]
                continue
            if answered == question:
                del asked[number]
                if isinstance(sample, Sample):
                    samples[rank.rank] = sample
    return samples


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
