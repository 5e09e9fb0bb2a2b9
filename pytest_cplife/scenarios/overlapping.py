"""Two sharded saves of which the second begins while the first is being written."""

from __future__ import annotations

import threading

from pytest_cplife.adapter import PendingSave
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.background import Writers, offers
from pytest_cplife.scenarios.crash_faults import listening
from pytest_cplife.scenarios.crash_kinds import attempt
from pytest_cplife.scenarios.editing import offer
from pytest_cplife.scenarios.meeting import meeting
from pytest_cplife.scenarios.order import Order, set_stage
from pytest_cplife.scenarios.replacing import come_together
from pytest_cplife.scenarios.scripts import next_step, train_to_save_point

_SOON = 0.5
"""Seconds after which the first save's writers go on: the second may wait for them."""


def begun_twice(rank: Rank, order: Order) -> None:
    """Begin a save, and one more to the same path before the first has written anything."""
    stage = set_stage(rank, order)
    run = stage.start()
    if not offers(stage, run):
        return
    train_to_save_point(stage, run)
    stage.recorder.moment("generation 1", run)
    writers, second = Writers(order.output.parent), list[PendingSave]()
    with meeting() as ranks, listening(writers, rank.own_process):
        with stage.recorder.phase("begin save"):
            first = run.save_sharded_async(order.output)
        with stage.recorder.phase("train on"):
            next_step(stage, run)
        stage.recorder.moment("generation 2", run)
        with stage.recorder.phase("begin a second save"):
            timer = threading.Timer(_SOON, writers.let_go)
            timer.start()
            began = attempt(lambda: second.append(run.save_sharded_async(order.output)))
            timer.join()
        with stage.recorder.phase("wait for both"):
            outcome = attempt(lambda: ended(first))
            stage.recorder.fact("first save", outcome)
            outcome = began or attempt(lambda: ended(second[0]))
            stage.recorder.fact("second save", outcome)
            come_together(stage, ranks, outcome)
    stage.recorder.fact("writers held", writers.met)
    stage.close(run)


def ended(pending: PendingSave) -> None:
    pending.result()


def begun_twice_again(rank: Rank, order: Order) -> None:
    """In other processes: load what the two have left."""
    stage = set_stage(rank, order)
    assert order.source is not None
    source = order.source
    run = stage.start()
    with stage.recorder.phase("load sharded"):
        outcome = offer(lambda: run.load_sharded(source), run)
        stage.barrier()
    stage.recorder.fact("refused", outcome)
    if not outcome:
        stage.recorder.moment("after load", run)
    stage.close(run)
