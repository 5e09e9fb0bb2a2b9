"""More ways to stop and go: again and again, from before the first step, with a zero lr."""

from __future__ import annotations

from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.edges import through_a_file
from pytest_cplife.scenarios.order import Order, set_stage
from pytest_cplife.scenarios.scripts import load, next_step, train_on


def relayed(rank: Rank, order: Order) -> None:
    """Load, make one step where a save is possible after it, and stop again."""
    stage = set_stage(rank, order)
    run = stage.start()
    load(stage, run)
    if stage.adapter.save_points == "any":
        with stage.recorder.phase("train on"):
            next_step(stage, run)
    with stage.recorder.phase("save again"):
        run.save(order.output)
    stage.close(run)


def relayed_again(rank: Rank, order: Order) -> None:
    """In other processes again: load the second checkpoint and save it as a third at once.

    Then, as nothing comes after, save weights that no training would have made.
    """
    stage = set_stage(rank, order)
    run = stage.start()
    load(stage, run)
    with stage.recorder.phase("save again"):
        run.save(order.output)
    if rank.rank == 0:
        assert order.source is not None
        for name, path in (("loaded", order.source), ("saved again", order.output)):
            with stage.recorder.phase("read"):
                view = stage.adapter.read_checkpoint(path)
            stage.file(name, path, view)
    through_a_file(stage, run)
    stage.close(run)


def relayed_thrice(rank: Rank, order: Order) -> None:
    """In yet other processes: load the third checkpoint and train to the end."""
    stage = set_stage(rank, order)
    _, after = order.steps
    at_save_point = stage.adapter.save_points == "epoch_end"
    if after < 2 and not at_save_point:
        stage.recorder.absent("more than one stop needs two steps after the save", "end")
        return
    run = stage.start()
    load(stage, run)
    if at_save_point:
        train_on(stage, run)
    else:
        stage.align(2)
        with stage.recorder.phase("train on"):
            stage.recorder.train("rest", run, after - 1)
        stage.recorder.moment("end", run)
    stage.close(run)


def rewound(rank: Rank, order: Order) -> None:
    """Load the checkpoint from before the first step and make that step."""
    stage = set_stage(rank, order)
    run = stage.start()
    load(stage, run)
    stage.align(0)
    with stage.recorder.phase("train"):
        stage.recorder.train("first", run, 1)
    stage.recorder.moment("after first step", run)
    stage.close(run)


def still(rank: Rank, order: Order) -> None:
    """Load, predict, set every learning rate to 0, and step."""
    stage = set_stage(rank, order)
    run = stage.start()
    load(stage, run)
    stage.predict("prediction", run)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            # A tensor lr (capturable optimizers) keeps its identity; others hold a number.
            if hasattr(group["lr"], "zero_"):
                group["lr"].zero_()
            else:
                group["lr"] = 0.0
    with stage.recorder.phase("still step"):
        stage.recorder.train("still", run, 1)
    stage.recorder.moment("after still step", run)
    stage.close(run)
