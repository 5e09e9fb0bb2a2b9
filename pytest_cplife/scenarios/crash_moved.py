"""What a job has left on one mesh goes to another one, and back to the mesh that began it."""

from __future__ import annotations

from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash import beside, revive
from pytest_cplife.scenarios.crash_kinds import PLAIN, SHARDED, Kind, book_of, train
from pytest_cplife.scenarios.crash_newest import NEWEST
from pytest_cplife.scenarios.meeting import meeting
from pytest_cplife.scenarios.order import Order, set_stage
from pytest_cplife.scenarios.replacing import replace


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


def moving_over(rank: Rank, order: Order) -> None:
    """On another mesh: go on from a checkpoint, and save over it; load what interruptions left."""
    _move_over(rank, order, PLAIN)


def moving_over_sharded(rank: Rank, order: Order) -> None:
    """The same with sharded checkpoints."""
    _move_over(rank, order, SHARDED)


def _move_over(rank: Rank, order: Order, kind: Kind) -> None:
    stage = set_stage(rank, order)
    assert order.source is not None
    book = book_of(order.source)
    newest, *instants = book.read("elsewhere")
    stage.recorder.fact("states", [newest, *instants])
    run = revive(stage, kind, book, newest.tree, order.output, interrupted=False)
    with meeting() as all_ranks:
        train(stage, run)
        stage.recorder.moment("moved on", run)
        with stage.recorder.phase("replace"):
            refusal = replace(stage, all_ranks, kind, run, order.output)
            all_ranks.wait()
        stage.recorder.fact("refusal", refusal)
        # The mesh that began reads what is saved now.
        elsewhere = beside(order, "interrupted", all_ranks)
    stage.close(run)
    for state in instants:
        stage.close(revive(stage, kind, book, state.tree, elsewhere))


def returning(rank: Rank, order: Order) -> None:
    """On the mesh that began: load the newest of the folder in which another one has saved."""
    _return(rank, order, NEWEST)


def returning_over(rank: Rank, order: Order) -> None:
    """On the mesh that began: load what another one has saved to the same path."""
    _return(rank, order, PLAIN)


def returning_over_sharded(rank: Rank, order: Order) -> None:
    """The same with sharded checkpoints."""
    _return(rank, order, SHARDED)


def _return(rank: Rank, order: Order, kind: Kind) -> None:
    stage = set_stage(rank, order)
    assert order.source is not None
    run = stage.start()
    with stage.recorder.phase("load"):
        kind.load(run, order.source)
        run.ready()
    stage.recorder.moment("returned", run)
    stage.close(run)
