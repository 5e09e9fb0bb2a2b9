"""One call on a pool: hand it out, gather the answers in time, and judge the failures."""

from __future__ import annotations

import contextlib
import pickle
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_cplife.launchers.base import WorldFailure
from pytest_cplife.launchers.deadlock import find_mismatches, proved, unmoved
from pytest_cplife.launchers.looks import abort_for_stacks, glance, look
from pytest_cplife.launchers.messages import Call, Failed, Ready, Returned
from pytest_cplife.launchers.recorder import Op
from pytest_cplife.launchers.samples import Glance, Sample
from pytest_cplife.launchers.served import ServedPool, ServedRank
from pytest_cplife.launchers.verdict import is_consequence, judge

_TICK = 0.02
# How long the other ranks may still report after a first failure that explains itself, and after
# one that only says that a peer is gone.
_GRACE = 0.3
_GRACE_FOR_THE_CAUSE = 2.0
_SEND_SECONDS = 10.0
# When ranks have been silent this long they are looked at, and again and again at this distance.
# Two looks that prove a deadlock end the call, well within two seconds.
_QUIET_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_SETTLE_SECONDS = 1.0
_LATE_SECONDS = 30.0
Answer = Ready | Returned | Failed


class Gathering:
    """The answers of a pool's ranks, as far as they are in."""

    def __init__(self, pool: ServedPool, deadline: float) -> None:
        self.pool = pool
        self.start = time.monotonic()
        self.end = self.start + deadline
        self.deadline = deadline
        self.answers: dict[int, Answer] = {}
        self.samples: dict[int, Sample] = {}
        self.deadlocked = False
        self._next_look = self.start + _QUIET_SECONDS
        self._last: tuple[frozenset[int], dict[int, Glance]] = (frozenset(), {})

    @property
    def waiting(self) -> list[ServedRank]:
        return [rank for rank in self.pool.ranks if rank.rank not in self.answers]

    @property
    def failed(self) -> list[Failed]:
        return [a for a in self.answers.values() if isinstance(a, Failed)]

    @property
    def finished(self) -> frozenset[int]:
        return frozenset(n for n, a in self.answers.items() if not isinstance(a, Failed))

    def gather(self) -> None:
        """Wait until every rank has answered, has died, or can no longer be expected to."""
        while self.waiting and not self.deadlocked and time.monotonic() < self._limit():
            self._take(self._readable())
            if not self.failed and self.waiting and time.monotonic() >= self._next_look:
                self._look()

    def _look(self) -> None:
        """Glance at the ranks, and look closely where none has moved since the last glance: what a
        look costs grows with what the ranks have done."""
        finished, waiting = self.finished, self.waiting
        last_finished, last = self._last
        seen = glance(self.pool, _LOOK_SECONDS, unless=waiting)
        if finished == last_finished and self._complete(seen) and unmoved(last, seen, finished):
            samples = look(self.pool, _LOOK_SECONDS, unless=waiting)
            if self._complete(samples) and proved(last, samples, finished):
                self.samples, self.deadlocked = samples, True
        self._last = (finished, seen if self._complete(seen) else {})
        self._next_look = time.monotonic() + _QUIET_SECONDS

    def _complete(self, seen: Mapping[int, Glance]) -> bool:
        return seen.keys() == {rank.rank for rank in self.pool.ranks}

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
                    answer: Answer = rank.control.receive_object(left)
                    if isinstance(answer, Failed) and not rank.same_clock:
                        answer = replace(answer, moment=time.monotonic())
                    self.answers[rank.rank] = answer
                except TimeoutError:
                    continue
                except (EOFError, OSError):
                    self._note_death(rank)

    def _note_death(self, rank: ServedRank) -> None:
        # The channel closes a moment before the process can be waited for.
        end = time.monotonic() + 1.0
        while rank.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        ending = rank.ending
        signalled = ending is not None and ending.signal
        self.answers[rank.rank] = Failed(
            kind="killed" if signalled else "exited",
            type_name="RankDied",
            message=f"the process {ending or 'closed its channel'} in the middle of the call",
            traceback="",
            moment=time.monotonic(),
            signal=ending.signal if ending is not None else 0,
        )


def start(pool: ServedPool, deadline: float) -> None:
    """Wait for the ranks of a fresh pool to join their world.

    Raises:
        WorldFailure: one did not.
    """
    gathering = Gathering(pool, deadline)
    gathering.gather()
    if gathering.failed or gathering.waiting:
        raise failure_of(gathering)


def call(pool: ServedPool, message: Call, deadline: float) -> tuple[list[Any], list[str], bool]:
    """Make one call: the results in rank order, notes, and whether the world is spent.

    Raises:
        WorldFailure: a rank failed; the pool must be closed.
    """
    gathering = Gathering(pool, deadline)
    packed = pickle.dumps(message)
    for rank in pool.ranks:
        with contextlib.suppress(OSError):  # a rank that is dead by now is told of by gather
            rank.control.send(packed, min(deadline, _SEND_SECONDS))
    gathering.gather()
    if gathering.failed or gathering.waiting:
        raise failure_of(gathering)
    _settle(gathering)
    _compare_collectives(gathering)
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


def _settle(gathering: Gathering) -> None:
    """Fail a call that left a collective behind which cannot complete now that all are back."""
    start = time.monotonic()
    left = {n: a.ops for n, a in gathering.answers.items() if isinstance(a, Returned)}
    while True:
        outstanding = {n: op for n, ops in left.items() for op in ops if op.pending}
        # What all have entered completes, however late a busy machine lets the recorder say so.
        patience = _LATE_SECONDS if _all_entered(left) else _SETTLE_SECONDS
        if not outstanding or time.monotonic() > start + patience:
            break
        left.update({n: s.ops for n, s in look(gathering.pool, _LOOK_SECONDS).items()})
        time.sleep(_TICK)
    for number, op in outstanding.items():
        gathering.answers[number] = Failed(
            kind="raised",
            type_name="OutstandingCollective",
            message=f"the call returned while {op} on group {op.group!r} was under way, and it "
            "cannot complete: nothing has waited for it, and not every rank has entered it",
            traceback="",
            moment=time.monotonic(),
        )
    if outstanding:
        raise failure_of(gathering)


def _all_entered(left: Mapping[int, Sequence[Op]]) -> bool:
    """True where each collective under way was entered by every rank that uses its group."""
    entered = {n: {(op.group, op.number, op.name) for op in ops} for n, ops in left.items()}
    for ops in left.values():
        for op in ops:
            users = [n for n, other in left.items() if any(o.group == op.group for o in other)]
            key = (op.group, op.number, op.name)
            if op.pending and (len(users) < 2 or any(key not in entered[n] for n in users)):
                return False
    return True


def _compare_collectives(gathering: Gathering) -> None:
    """Fail a call whose ranks all returned although they did not enter the same collectives.

    gloo does not compare shapes: where it neither hangs nor aborts, it returns garbage.
    """
    ops = {n: a.ops for n, a in gathering.answers.items() if isinstance(a, Returned)}
    if not any(ops.values()):
        return
    clashes = find_mismatches(ops, {})
    for clash in clashes:
        gathering.answers[clash.rank] = Failed(
            kind="raised",
            type_name="Mismatch",
            message=f"{clash.text}; every rank returned, but with what cannot be trusted",
            traceback="",
            moment=time.monotonic(),
        )
    if clashes:
        raise failure_of(gathering)


def failure_of(gathering: Gathering) -> WorldFailure:
    """Every rank that failed or did not finish, the cause first, with what each was doing."""
    pool, seconds = gathering.pool, time.monotonic() - gathering.start
    samples = gathering.samples or look(pool, _LOOK_SECONDS)
    mute = [r for r in gathering.waiting if r.rank not in samples and r.poll() is None]
    abort_for_stacks(mute)
    return judge(
        {n: a for n, a in gathering.answers.items() if isinstance(a, Failed)},
        [rank.rank for rank in gathering.waiting],
        gathering.finished,
        samples,
        {rank: pool.output(rank) for rank in range(pool.spec.size)},
        seconds=seconds,
        deadline=gathering.deadline,
        deadlocked=gathering.deadlocked,
    )
