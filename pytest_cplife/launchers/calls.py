"""One call on a pool: hand it out, gather the answers in time, and judge the failures."""

from __future__ import annotations

import contextlib
import pickle
import re
import select
import time
from typing import Any

from pytest_cplife.launchers.base import RankFailure, WorldFailure
from pytest_cplife.launchers.messages import Call, Failed, Ready, Returned
from pytest_cplife.launchers.pool import Pool, RankProcess

_TICK = 0.02
# How long the other ranks may still report after a first failure that explains itself, and after
# one that only says that a peer is gone.
_GRACE = 0.3
_GRACE_FOR_THE_CAUSE = 2.0
_SEND_SECONDS = 10.0
_CONSEQUENCE = re.compile(
    r"connection closed by peer|connection reset|broken pipe|pair closure|timed out waiting"
    r"|timed out after|wait timeout|socket closed|remote process exited|recvvalue failed"
    r"|sendbytes failed|failed to recv|software caused connection abort",
    re.IGNORECASE,
)

Answer = Ready | Returned | Failed


class Gathering:
    """The answers of a pool's ranks, as far as they are in."""

    def __init__(self, pool: Pool, deadline: float) -> None:
        self.pool = pool
        self.start = time.monotonic()
        self.end = self.start + deadline
        self.deadline = deadline
        self.answers: dict[int, Answer] = {}

    @property
    def waiting(self) -> list[RankProcess]:
        return [rank for rank in self.pool.ranks if rank.rank not in self.answers]

    @property
    def failed(self) -> list[Failed]:
        return [a for a in self.answers.values() if isinstance(a, Failed)]

    def gather(self) -> None:
        """Wait until every rank has answered, has died, or can no longer be expected to."""
        while self.waiting and time.monotonic() < self._limit():
            self._take(self._readable())

    def _limit(self) -> float:
        if not self.failed:
            return self.end
        first = min(f.moment for f in self.failed)
        explained = any(not is_consequence(f) for f in self.failed)
        return min(self.end, first + (_GRACE if explained else _GRACE_FOR_THE_CAUSE))

    def _readable(self) -> set[int]:
        poll = select.poll()
        for rank in self.waiting:
            poll.register(rank.control.fileno(), select.POLLIN)
        return {number for number, _ in poll.poll(_TICK * 1000)}

    def _take(self, readable: set[int]) -> None:
        for rank in self.waiting:
            # Asked before reading: an answer sent just before the end is still in the channel.
            ending = rank.poll()
            if rank.control.fileno() in readable or ending is not None:
                try:
                    left = max(self.end - time.monotonic(), 1.0)
                    self.answers[rank.rank] = rank.control.receive_object(left)
                except TimeoutError:
                    continue
                except (EOFError, OSError):
                    self._note_death(rank)

    def _note_death(self, rank: RankProcess) -> None:
        # The channel closes a moment before the process can be waited for.
        end = time.monotonic() + 1.0
        while rank.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        ending = rank.ending
        signalled = ending is not None and ending.signal
        self.answers[rank.rank] = Failed(
            kind="killed" if signalled else "exited",
            type_name="RankDied",
            message=f"the process {ending or 'closed its channel'} during the call",
            traceback="",
            moment=time.monotonic(),
        )


def is_consequence(failure: Failed) -> bool:
    """Whether the failure only tells that another rank has failed."""
    return failure.kind == "raised" and bool(_CONSEQUENCE.search(failure.message))


def start(pool: Pool, deadline: float) -> None:
    """Wait for the ranks of a fresh pool to join their world.

    Raises:
        WorldFailure: one did not.
    """
    gathering = Gathering(pool, deadline)
    gathering.gather()
    if gathering.failed or gathering.waiting:
        raise failure_of(gathering)


def call(pool: Pool, message: Call, deadline: float) -> tuple[list[Any], list[str], bool]:
    """Make one call: the results in rank order, notes, and whether the world is spent.

    Raises:
        WorldFailure: a rank failed; the pool must be closed.
    """
    pool.clear_output()
    gathering = Gathering(pool, deadline)
    packed = pickle.dumps(message)
    for rank in pool.ranks:
        with contextlib.suppress(OSError):  # a rank that is dead by now is told of by gather
            rank.control.send(packed, min(deadline, _SEND_SECONDS))
    gathering.gather()
    if gathering.failed or gathering.waiting:
        raise failure_of(gathering)
    results, notes, spent = [], [], False
    for number in range(pool.spec.size):
        answer = gathering.answers[number]
        assert isinstance(answer, Returned)
        try:
            results.append(pickle.loads(answer.payload))
        except Exception as error:
            gathering.answers[number] = Failed(
                kind="unserialisable",
                type_name=type(error).__name__,
                message=f"the result arrived but cannot be read: {error}",
                traceback="",
                moment=time.monotonic(),
            )
            raise failure_of(gathering) from error
        notes += [f"rank {number}: {note}" for note in answer.notes]
        spent = spent or answer.spent
    return results, notes, spent


def failure_of(gathering: Gathering) -> WorldFailure:
    """Every rank that failed or did not finish, the cause first."""
    pool, seconds = gathering.pool, time.monotonic() - gathering.start
    known = {n: a for n, a in gathering.answers.items() if isinstance(a, Failed)}
    causes = [n for n, failed in known.items() if not is_consequence(failed)]
    ordered = sorted(known, key=lambda n: (n not in causes and bool(causes), known[n].moment))
    failures = [
        RankFailure(
            rank=n,
            kind=known[n].kind,
            type_name=known[n].type_name,
            message=known[n].message,
            traceback=known[n].traceback,
            secondary=bool(causes) and n not in causes,
            output=pool.output(n),
        )
        for n in ordered
    ]
    for rank in gathering.waiting:
        failures.append(
            RankFailure(
                rank=rank.rank,
                kind="hung",
                type_name="Timeout",
                message=f"not finished after {seconds:.1f} s"
                + ("" if known else f" (the deadline was {gathering.deadline:g} s)"),
                secondary=bool(known),
                output=pool.output(rank.rank),
            )
        )
    return WorldFailure(tuple(failures), seconds)
