"""What is on the disk at each instant of a save, and what a load makes of it; for both kinds."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.folders import (
    FolderState,
    StateBook,
    names_in,
    tree_digest,
)
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash_faults import listening
from pytest_cplife.scenarios.crash_kinds import (
    PLAIN,
    SHARDED,
    Kind,
    book_of,
    check_saved,
    train,
)
from pytest_cplife.scenarios.crash_states import Watch, choose, halfway
from pytest_cplife.scenarios.editing import offer
from pytest_cplife.scenarios.meeting import Meeting, meeting
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.replacing import replace

_STATES = 6
"""How many states of one run are loaded; each costs a start and a load."""
_ELSEWHERE = 2
"""How many of them are loaded on another mesh."""


def overwriting(rank: Rank, order: Order) -> None:
    """Save, train, and save over it, keeping what is on the disk at every instant."""
    _overwrite(rank, order, PLAIN)


def overwriting_sharded(rank: Rank, order: Order) -> None:
    """The same with sharded checkpoints."""
    _overwrite(rank, order, SHARDED)


def _overwrite(rank: Rank, order: Order, kind: Kind) -> None:
    stage = set_stage(rank, order)
    run = stage.start()
    if not kind.is_offered(stage, run):
        return
    path, book = order.output, book_of(order.output)
    with meeting() as all_ranks:
        seen: list[FolderState] = []
        newest, refusal = "", ""
        for name in ("generation 1", "generation 2"):
            train(stage, run)
            stage.recorder.moment(name, run)
            watch = Watch(book, path, name, rank.rank, fresh=name == "generation 1")
            with listening(watch, rank.own_process):
                if newest:
                    with stage.recorder.phase("replace"):
                        refusal = replace(stage, all_ranks, kind, run, path)
                else:
                    with stage.recorder.phase("save"):
                        kind.save(run, path)
            all_ranks.wait()
            check_saved(path)
            if not refusal:
                newest = name
                seen += watch.seen
        together = [state for part in all_ranks.gather(seen) for state in part]
        if rank.rank == 0:
            last = FolderState(newest, book.keep(path.parent), tree_digest(path), False)
            book.write([last, *choose(together, _STATES)])
            book.write([last, *halfway(together, last, _ELSEWHERE)], "elsewhere")
            stage.recorder.fact("names", names_in(path.parent))
            stage.recorder.fact("instants", len({state.tree for state in together}))
        stage.recorder.fact("refusal", refusal)
    stage.close(run)


def beside(order: Order, name: str, all_ranks: Meeting) -> Path:
    """A new path for a checkpoint, in a folder of its own. Collective."""
    place = order.folder / name / order.output.name
    place.parent.mkdir(parents=True, exist_ok=True)
    all_ranks.wait()
    return place


def recovering(rank: Rank, order: Order) -> None:
    """In fresh processes: put back what was on the disk at an instant, and load it."""
    recover(rank, order, PLAIN)


def recovering_sharded(rank: Rank, order: Order) -> None:
    """The same with sharded checkpoints."""
    recover(rank, order, SHARDED)


def recover(rank: Rank, order: Order, kind: Kind) -> None:
    """Load each state of the order's source in a run of its own, the undisturbed one first."""
    stage = set_stage(rank, order)
    path = order.source
    assert path is not None
    book = book_of(path)
    states = book.read()
    stage.recorder.fact("states", states)
    undisturbed, *others = dict.fromkeys(state.tree for state in states)
    stage.close(revive(stage, kind, book, undisturbed, path, interrupted=False))
    for tree in others:
        stage.close(revive(stage, kind, book, tree, path))


def revive(
    stage: Stage, kind: Kind, book: StateBook, tree: str, path: Path, *, interrupted: bool = True
) -> TrainingRun:
    """Put a state back into the folder of `path` and load it in a run that has just started.

    Notes the exception of each rank, and the state where there is none, by the name of `tree`.

    Args:
        interrupted: whether a refusal is for the rules to judge; else the load has to succeed.
    """
    if stage.rank.rank == 0:
        with stage.recorder.phase("put back"):
            book.put_back(tree, path.parent)
    run = stage.start()
    outcome = ""
    with meeting() as all_ranks:
        all_ranks.wait()
        if interrupted:
            with stage.recorder.phase("load an interrupted save"):
                outcome = offer(lambda: kind.load(run, path), run)
                all_ranks.wait()
        else:
            with stage.recorder.phase("load"):
                kind.load(run, path)
                run.ready()
    stage.recorder.fact(f"{tree}: refused", outcome)
    if not outcome:
        stage.recorder.moment(tree, run)
    return run
