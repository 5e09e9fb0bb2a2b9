"""Saving and loading on the scales: what each rank's tensors take meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_cplife.evidence.weighing import can_weigh, weighing
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, set_stage

_ALL = ("save: weight", "load: weight", "load sharded: weight")


def weighed(rank: Rank, order: Order) -> None:
    """Train, save and load, plain and sharded, under a count of the memory that tensors take.

    The count changes how operators are dispatched, so that this run is compared with no other.
    """
    stage = set_stage(rank, order)
    if not can_weigh():
        stage.recorder.absent("this system does not tell mapped files from memory", *_ALL)
        return
    sharded = order.output.with_name("sharded")
    run = stage.start()
    before, _ = order.steps
    with stage.recorder.phase("train"):
        stage.align(0)
        stage.recorder.train("first", run, before)
    stage.recorder.moment("before save", run)
    with stage.recorder.phase("save"), _scales(stage, "save"):
        run.save(order.output)
    both = {"save_sharded", "load_sharded"} <= stage.offered(run)
    if both:
        with stage.recorder.phase("save sharded"):
            run.save_sharded(sharded)
    stage.close(run)

    run = stage.start()
    with stage.recorder.phase("load"), _scales(stage, "load"):
        run.load(order.output)
        run.ready()
    stage.recorder.moment("after load", run)
    stage.close(run)
    if not both:
        why = "capability save_sharded, load_sharded is not offered"
        stage.recorder.absent(why, "load sharded: weight")
        return

    run = stage.start()
    with stage.recorder.phase("load sharded"), _scales(stage, "load sharded"):
        run.load_sharded(sharded)
        run.ready()
    stage.recorder.moment("after sharded load", run)
    stage.close(run)


@contextmanager
def _scales(stage: Stage, name: str) -> Iterator[None]:
    # All begin together: a rank that waits for another one holds what it has in hand for longer.
    stage.barrier()
    with weighing() as weight:
        yield
    stage.recorder.fact(f"{name}: weight", weight)
