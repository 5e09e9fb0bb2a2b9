"""The turn alone, without torch: who gets it, and what happens when nobody can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pytest_cplife.launchers.threads.stops import Abandoned, Deadlock, RankStopped
from pytest_cplife.launchers.threads.turns import Turns, Wait

Body = Callable[[Turns, int], None]


class Play:
    """Rank threads that run one body each, and what was seen of them."""

    def __init__(self, *bodies: Body) -> None:
        self.log: list[str] = []
        self.errors: dict[int, BaseException] = {}
        self.stuck_with: dict[int, str] = {}
        self.turns = Turns(
            len(bodies),
            leave=lambda rank: self.log.append(f"{rank} leaves"),
            enter=lambda rank: self.log.append(f"{rank} enters"),
            stuck=self._stuck,
        )
        self.threads = [
            threading.Thread(target=self._run, args=(rank, body), daemon=True)
            for rank, body in enumerate(bodies)
        ]
        for thread in self.threads:
            thread.start()
        self.turns.begin()

    def _run(self, rank: int, body: Body) -> None:
        self.turns.await_turn(rank)
        try:
            body(self.turns, rank)
        except BaseException as error:
            self.errors[rank] = error
        self.turns.finish(rank)

    def _stuck(self, waits: Mapping[int, Wait]) -> Mapping[int, RankStopped]:
        self.stuck_with = {rank: wait.text() for rank, wait in waits.items()}
        return {rank: Deadlock(f"rank {rank}") for rank in waits}


def idle(turns: Turns, rank: int) -> None:
    pass


def test_every_rank_has_a_turn_in_order() -> None:
    play = Play(idle, idle, idle)
    assert play.turns.over(10)
    steps = [f"{rank} {what}" for rank in range(3) for what in ("enters", "leaves")]
    assert play.log == steps and play.turns.current is None


def test_a_wait_ends_when_another_rank_has_made_it_ready() -> None:
    facts: list[str] = []

    def waiter(turns: Turns, rank: int) -> None:
        turns.wait(rank, lambda: "done" in facts, lambda: "the fact")
        facts.append("seen")

    play = Play(waiter, lambda turns, rank: facts.append("done"), idle)
    assert play.turns.over(10)
    assert facts == ["done", "seen"] and not play.errors
    assert [step for step in play.log if "enters" in step] == [
        "0 enters",
        "1 enters",
        "2 enters",
        "0 enters",
    ]


def test_what_is_ready_costs_no_turn() -> None:
    play = Play(lambda turns, rank: turns.wait(rank, lambda: True, str), idle)
    assert play.turns.over(10)
    assert play.log == ["0 enters", "0 leaves", "1 enters", "1 leaves"]


def test_a_pause_lets_the_others_run_first() -> None:
    order: list[int] = []

    def polite(turns: Turns, rank: int) -> None:
        turns.pause(rank, lambda: "a poll")
        order.append(rank)

    play = Play(polite, lambda turns, rank: order.append(rank), lambda turns, rank: order.append(2))
    assert play.turns.over(10)
    assert order == [1, 2, 0]
    alone = Play(polite)
    assert alone.turns.over(10) and order[-1] == 0


def test_where_nobody_can_go_on_each_is_told_and_unwinds_in_its_turn() -> None:
    def hopeless(turns: Turns, rank: int) -> None:
        turns.wait(rank, lambda: False, lambda: f"hope {rank}")

    play = Play(hopeless, idle, hopeless)
    assert play.turns.over(10)
    assert play.stuck_with == {0: "hope 0", 2: "hope 2"}
    assert {rank: str(error) for rank, error in play.errors.items()} == {0: "rank 0", 2: "rank 2"}


def test_a_rank_that_was_told_cannot_wait_again() -> None:
    seen: list[str] = []

    def stubborn(turns: Turns, rank: int) -> None:
        for _ in range(3):
            try:
                turns.wait(rank, lambda: False, lambda: "more")
            except Deadlock as error:
                seen.append(str(error))

    play = Play(stubborn, idle)
    assert play.turns.over(10)
    assert seen == ["rank 0"] * 3


def test_the_turn_can_be_taken_away() -> None:
    release = threading.Event()

    def slow(turns: Turns, rank: int) -> None:
        release.wait(10)
        turns.wait(rank, lambda: True, lambda: "too late")

    def waiter(turns: Turns, rank: int) -> None:
        turns.wait(rank, lambda: False, lambda: "the slow one")

    play = Play(waiter, slow)
    assert not play.turns.over(0.05)
    assert play.turns.revoke("too slow") == 1
    assert play.turns.over(10)
    assert str(play.errors[0]) == "too slow; waits in the slow one"
    release.set()
    play.threads[1].join(10)
    # The one that lost it is turned away, and gives no second turn to anybody.
    assert isinstance(play.errors[1], Abandoned) and "too late" in str(play.errors[1])
    assert play.turns.current is None and not play.turns.over(0)


def test_a_thread_without_the_turn_is_refused() -> None:
    play = Play(lambda turns, rank: turns.wait(1, lambda: True, lambda: "a wait of rank 1"), idle)
    assert play.turns.over(10)
    error = play.errors[0]
    assert isinstance(error, RuntimeError)
    assert "while it is rank 0's turn (a wait of rank 1)" in str(error)


def test_rounds_follow_each_other() -> None:
    turns = Turns(2, leave=lambda rank: None, enter=lambda rank: None, stuck=lambda waits: {})
    runs: list[int] = []

    def serve(rank: int) -> None:
        while turns.await_turn(rank):
            runs.append(rank)
            turns.finish(rank)

    threads = [threading.Thread(target=serve, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        turns.begin()
        assert turns.over(10)
    turns.dismiss()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert runs == [0, 1] * 3
