"""A folder of checkpoints that goes to another mesh, and back to the one that began it."""

from __future__ import annotations

from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash import revive
from pytest_cplife.scenarios.crash_kinds import book_of, train
from pytest_cplife.scenarios.crash_newest import NEWEST
from pytest_cplife.scenarios.meeting import meeting
from pytest_cplife.scenarios.order import Order, set_stage


def moving(rank: Rank, order: Order) -> None:
    """On another mesh: load the newest of what was in the folder at an instant; then go on."""
    stage = set_stage(rank, order)
    assert order.source is not None
    # Copies: the mesh that has filled the folder may still be asked for what it holds.
    folder, book = order.output, book_of(order.source)
    newest, _, *instants = book.read()
    stage.recorder.fact("states", [newest, *instants])
    for tree in dict.fromkeys(state.tree for state in instants if state.tree != newest.tree):
        stage.close(revive(stage, NEWEST, book, tree, folder))
    run = revive(stage, NEWEST, book, newest.tree, folder, interrupted=False)
    train(stage, run)
    stage.recorder.moment("moved on", run)
    with meeting() as all_ranks, stage.recorder.phase("save into"):
        NEWEST.save(run, folder)
        all_ranks.wait()
    stage.close(run)


def returning(rank: Rank, order: Order) -> None:
    """On the mesh that began: load the newest of the folder in which another one has saved."""
    stage = set_stage(rank, order)
    assert order.source is not None
    run = stage.start()
    with stage.recorder.phase("load"):
        NEWEST.load(run, order.source)
        run.ready()
    stage.recorder.moment("returned", run)
    stage.close(run)
