"""Every way for a call to end badly: what it says, how long that takes, and that the next works."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from pytest_cplife.launchers.base import Rank, World, WorldFailure

Body = Callable[[Rank], object]
# A quarter of the deadline. On a machine that does nothing else it is milliseconds.
_AT_ONCE = 15.0


def healthy(rank: Rank) -> float:
    tensor = torch.ones(())
    dist.all_reduce(tensor)
    return tensor.item()


@contextmanager
def failing(world: World, body: Body, timeout: float | None = None) -> Iterator[WorldFailure]:
    """Run a body that fails; afterwards no thread of it is left and the world works."""
    world.close()
    world.run(lambda rank: None)
    before = time.monotonic()
    with pytest.raises(WorldFailure) as caught:
        world.run(body, timeout=timeout)
    assert time.monotonic() - before < (timeout or 0) + _AT_ONCE
    yield caught.value
    names = {f"rank {r} of {world.size}" for r in range(world.size)}
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(_AT_ONCE)
            assert not thread.is_alive()
    assert world.run(healthy) == [world.size] * world.size


def absent(rank: Rank) -> None:
    if rank.rank != 1:
        dist.all_reduce(torch.ones(2, 3))


def test_a_rank_that_never_comes_is_named(four: World) -> None:
    with failing(four, absent) as failure:
        assert [f.rank for f in failure.failures] == [0, 2, 3]
        assert {(f.kind, f.type_name, f.secondary) for f in failure.failures} == {
            ("hung", "Deadlock", False)
        }
        place = "all_reduce #1 (sum, [2, 3] float32) on group 0 of ranks 0, 1, 2, 3, for rank 1"
        assert f"rank 0 waits in {place}\n  rank 1 has returned\n" in failure.primary.message
        assert failure.failures[1].message == f"waits in {place}"
        assert "absent" in failure.primary.traceback


def crossed(rank: Rank) -> None:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (first, second) if rank.rank == 0 else (second, first):
        dist.all_reduce(torch.ones(1), group=group)


def unmatched_receive(rank: Rank) -> None:
    if rank.rank == 0:
        dist.recv(torch.ones(1), 1, tag=4)
    else:
        dist.barrier()


def lonely_group(rank: Rank) -> None:
    if rank.rank == 0:
        dist.new_group([0, 1])
    else:
        dist.barrier()


def empty_store(rank: Rank) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank.rank == 0:
        store.get("never set")
    else:
        dist.barrier()


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        (
            crossed,
            "all_reduce #1 (sum, [1] float32) on group 1 of ranks 0, 1, for rank 1",
            "all_reduce #1 (sum, [1] float32) on group 2 of ranks 0, 1, for rank 0",
        ),
        (
            unmatched_receive,
            "recv from rank 1 (tag 4) on group 0 of ranks 0, 1",
            "barrier #1 on group 0 of ranks 0, 1, for rank 0",
        ),
        (
            lonely_group,
            "the creation of group (new) by rank 0, for rank 1",
            "barrier #1 on group 0 of ranks 0, 1, for rank 0",
        ),
        (empty_store, "Store.wait for 0//never set", "barrier #1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_deadlock_is_proved(two: World, body: Body, first: str, second: str) -> None:
    with failing(two, body) as failure:
        assert failure.primary.type_name == "Deadlock"
        lines = failure.primary.message.splitlines()
        assert lines[0] == "no rank can go on:"
        assert lines[1].startswith(f"  rank 0 waits in {first}")
        assert lines[2].startswith(f"  rank 1 waits in {second}")


def other_operation(rank: Rank) -> None:
    if rank.rank == 1:
        dist.broadcast(torch.ones(4), src=1)
    else:
        dist.all_reduce(torch.ones(4))


def other_shape(rank: Rank) -> None:
    dist.all_reduce(torch.ones(4 + rank.rank))


def other_dtype(rank: Rank) -> None:
    """On bare gloo this aborts the process."""
    dist.all_reduce(torch.ones(4, dtype=(torch.float32, torch.float64)[rank.rank]))


def other_root(rank: Rank) -> None:
    dist.broadcast(torch.ones(4), src=rank.rank)


def other_reduction(rank: Rank) -> None:
    dist.all_reduce(torch.ones(4), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank.rank])


def other_split(rank: Rank) -> None:
    dist.all_to_all_single(torch.empty(3), torch.ones(3), [2, 1], [2, 1])


def other_message(rank: Rank) -> None:
    if rank.rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(4), 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            other_operation,
            "rank 1 calls broadcast #1 (root 1, [4] float32) on group 0 of ranks 0, 1, "
            "but rank 0 called all_reduce #1 (sum, [4] float32)",
        ),
        (other_shape, "rank 1 calls all_reduce #1 (sum, [5] float32)"),
        (other_dtype, "rank 1 calls all_reduce #1 (sum, [4] float64)"),
        (other_root, "rank 1 calls broadcast #1 (root 1, [4] float32)"),
        (other_reduction, "rank 1 calls all_reduce #1 (max, [4] float32)"),
        (other_split, "rank 0 sends 1 element(s) to rank 1, which expects 2"),
        (other_message, "rank 0 sends 3 element(s) of torch.float32 to rank 1, which expects 4"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_does_not_match_never_reaches_gloo(two: World, body: Body, words: str) -> None:
    with failing(two, body) as failure:
        assert (failure.primary.rank, failure.primary.type_name) == (1, "Desync")
        assert words in failure.primary.message
        assert body.__name__ in failure.primary.traceback


def test_the_first_error_is_the_headline_and_its_consequences_are_folded(four: World) -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 2:
            raise LookupError("the culprit")
        dist.barrier()

    with failing(four, body) as failure:
        assert failure.primary.headline() == "rank 2 raised: LookupError: the culprit"
        assert [(f.rank, f.secondary) for f in failure.failures] == [
            (2, False),
            (0, True),
            (1, True),
            (3, True),
        ]
        assert "rank 2 has failed" in failure.failures[1].message
        assert isinstance(failure.__cause__, LookupError)


def test_every_ranks_own_error_is_told(two: World) -> None:
    def body(rank: Rank) -> None:
        raise ValueError(f"mine is {rank.rank}")

    with failing(two, body) as failure:
        assert [f.message for f in failure.failures] == ["mine is 0", "mine is 1"]
        assert not any(f.secondary for f in failure.failures)


@pytest.mark.parametrize("status", [0, 3, None])
def test_sys_exit_is_a_failure_whatever_its_status(two: World, status: int | None) -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 1:
            sys.exit(status)
        dist.barrier()

    with failing(two, body) as failure:
        assert failure.primary.rank == 1 and failure.primary.kind == "exited"
        assert f"sys.exit({status!r})" in failure.primary.message


def test_a_program_that_catches_everything_still_ends(two: World) -> None:
    tries = []

    def body(rank: Rank) -> None:
        if rank.rank == 1:
            raise LookupError("the culprit")
        for _ in range(3):
            try:
                dist.barrier()
            except Exception:
                tries.append("an Exception")
            except BaseException:
                tries.append("more")

    with failing(two, body) as failure:
        assert failure.primary.rank == 1
        assert tries == ["more"] * 3


def test_cleaning_up_runs_in_the_ranks_that_are_ended(two: World) -> None:
    cleaned = []

    def body(rank: Rank) -> None:
        if rank.rank == 1:
            return
        try:
            dist.barrier()
        finally:
            cleaned.append(dist.get_rank())

    with failing(two, body):
        assert cleaned == [0]


def spinning(rank: Rank) -> None:
    if rank.rank == 1:
        while True:
            pass
    dist.barrier()


def test_a_rank_that_does_not_finish_meets_the_deadline(two: World) -> None:
    with failing(two, spinning, timeout=0.5) as failure:
        assert failure.primary.rank == 1 and failure.primary.kind == "hung"
        assert "the deadline was 0.5 s" in failure.primary.message
        assert "in spinning" in failure.primary.traceback
        assert failure.failures[1].secondary
        assert "rank 1 did not finish within 0.5 s; waits in barrier" in failure.failures[1].message


def test_a_rank_that_sleeps_in_c_stays_behind_and_harms_nobody(two: World) -> None:
    ended = threading.Event()

    def body(rank: Rank) -> None:
        if rank.rank == 0:
            try:
                time.sleep(2)
            finally:
                ended.set()
        dist.barrier()

    two.run(healthy)
    with pytest.raises(WorldFailure, match="cannot be ended and stays behind"):
        two.run(body, timeout=0.3)
    assert two.run(healthy) == [2, 2]
    assert ended.wait(10)
    assert two.run(healthy) == [2, 2]


def test_an_interrupt_ends_the_call_and_the_next_works(two: World) -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while True:
                pass
        dist.barrier()

    # A shell that starts pytest in the background has it ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            two.run(body)
    finally:
        signal.signal(signal.SIGINT, before)
    assert two.run(healthy) == [2, 2]


def test_an_operation_that_gloo_refuses_is_the_callers_error(two: World) -> None:
    def body(rank: Rank) -> str:
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(2, dtype=torch.int16))
        dist.barrier()
        return str(caught.value)

    assert two.run(body) == ["Invalid scalar type"] * 2


def test_where_gloo_refuses_one_rank_the_others_do_not_wait_for_it(two: World) -> None:
    def body(rank: Rank) -> None:
        pieces = [torch.ones(2) for _ in range(3)]
        dist.scatter(torch.ones(2), pieces if rank.rank == 0 else None, src=0)

    with failing(two, body) as failure:
        assert (failure.primary.rank, failure.primary.type_name) == (0, "RuntimeError")
        assert "Incorrect input list size 3" in failure.primary.message
        assert failure.failures[1].message.startswith("rank 0 failed in scatter #1 (root 0")
