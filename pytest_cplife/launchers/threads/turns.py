"""Who runs: exactly one rank at a time, in an order that depends on the program alone.

A rank keeps its turn until it waits for something that only another rank can bring about. The
turn then goes to the next rank, counting upwards and around, that can go on. Where none can,
none ever will, which is the proof of a deadlock: no clock is involved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_cplife.launchers.threads.stops import Abandoned, RankStopped

RANK_OF_THREAD = "cplife_rank"
"""Attribute of a thread: the rank that it is, or that started it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank waits for: a question that any thread may ask, and words for it."""

    ready: Callable[[], bool]
    text: Callable[[], str]


def _always() -> bool:
    return True


class Turns:
    """The turn and its way through the ranks, one *round* (one call on a world) after another.

    Args:
        size: number of ranks.
        leave: called in a rank's thread just before it gives up its turn.
        enter: called in a rank's thread when it has got it.
        stuck: called when no rank can go on, with what each waits for; what ends each of them.
    """

    def __init__(
        self,
        size: int,
        *,
        leave: Callable[[int], None],
        enter: Callable[[int], None],
        stuck: Callable[[Mapping[int, Wait]], Mapping[int, RankStopped]],
    ) -> None:
        self.size = size
        self.current: int | None = None
        self._leave = leave
        self._enter = enter
        self._stuck = stuck
        self._gates = [_closed() for _ in range(size)]
        self._over = _closed()
        # Held while the turn changes hands: the main thread may take it away at a deadline.
        self._handing_over = threading.Lock()
        self._to_begin: set[int] = set()
        self._waits: dict[int, Wait] = {}
        self._verdicts: dict[int, RankStopped] = {}
        self.lost: set[int] = set()
        self._dismissed = False

    # The main thread's side.

    def begin(self) -> None:
        """Start a round: every rank will have a turn, rank 0 the first."""
        self._to_begin = set(range(self.size))
        with self._handing_over:
            self._pass_on(self.size - 1)

    def over(self, seconds: float) -> bool:
        """Wait until every rank has finished its round, at most `seconds`."""
        return self._over.acquire(timeout=max(seconds, 0))

    def revoke(self, reason: str) -> int | None:
        """Take the turn from a rank that does not give it up, and end those that wait.

        Returns:
            that rank, which may never again hold a turn; None if the round ended meanwhile.
        """
        with self._handing_over:
            slow = self.current
            if slow is None:
                return None
            self.lost.add(slow)
            for rank, wait in self._waits.items():
                self._verdicts.setdefault(rank, Abandoned(f"{reason}; waits in {wait.text()}"))
            self._pass_on(slow)
            return slow

    def dismiss(self) -> None:
        """Let every rank that awaits its next round go."""
        self._dismissed = True
        for gate in self._gates:
            gate.release()

    # The rank threads' side.

    def await_turn(self, rank: int) -> bool:
        """Wait for the next round's first turn of `rank`; False if there will be none."""
        self._gates[rank].acquire()
        if self._dismissed:
            return False
        self._enter(rank)
        return True

    def wait(self, rank: int, ready: Callable[[], bool], text: Callable[[], str]) -> None:
        """Return when `ready`; let other ranks run until then.

        Raises:
            RankStopped: it can never become so, or the call has ended for another reason.
        """
        self.check(rank, text)
        if not ready():
            self._hand_over(rank, Wait(ready, text))

    def pause(self, rank: int, text: Callable[[], str]) -> None:
        """Let every other rank that can go on do so first."""
        self.check(rank, text)
        self._hand_over(rank, Wait(_always, text))

    def finish(self, rank: int) -> None:
        """End the round for `rank`."""
        with self._handing_over:
            if rank in self.lost:
                return
            self._leave(rank)
            self._pass_on(rank)

    def check(self, rank: int, text: Callable[[], str]) -> None:
        """Refuse an operation of a rank whose turn it is not, or whose call has ended.

        Raises:
            RankStopped: the call has ended.
            RuntimeError: a thread of another rank makes it.
        """
        if rank in self.lost:
            raise Abandoned(f"the call has ended; not to wait in {text()}")
        if rank in self._verdicts:
            raise self._verdicts[rank]
        caller = getattr(threading.current_thread(), RANK_OF_THREAD, rank)
        if not caller == rank == self.current:
            raise RuntimeError(
                f"a thread of rank {caller} communicates while it is rank {self.current}'s turn "
                f"({text()}). Under the launcher 'threads' a rank communicates in its turn; a "
                "program with collectives in background threads needs 'processes'"
            )

    def _hand_over(self, rank: int, wait: Wait) -> None:
        with self._handing_over:
            if rank in self.lost:
                raise Abandoned(f"the call has ended; not to wait in {wait.text()}")
            self._leave(rank)
            self._waits[rank] = wait
            self._pass_on(rank)
        self._gates[rank].acquire()
        self._enter(rank)
        if rank in self._verdicts:
            raise self._verdicts[rank]

    def _pass_on(self, rank: int) -> None:
        """Give the turn to the next rank after `rank`. The lock is held."""
        following = self._next_after(rank)
        if following is None and self._waits:
            self._verdicts.update(self._stuck(dict(self._waits)))
            following = min(self._waits)
        if following is None:
            self.current = None
            self._over.release()
            return
        self._to_begin.discard(following)
        self._waits.pop(following, None)
        self.current = following
        self._gates[following].release()

    def _next_after(self, rank: int) -> int | None:
        for step in range(1, self.size + 1):
            candidate = (rank + step) % self.size
            if candidate in self._to_begin:
                return candidate
            wait = self._waits.get(candidate)
            if wait is not None and (candidate in self._verdicts or wait.ready()):
                return candidate
        return None


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
