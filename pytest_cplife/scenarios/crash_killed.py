"""Saves in which a rank is killed, and the restart after them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.folders import (
    largest_file,
    names_in,
)
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash_faults import full_disk
from pytest_cplife.scenarios.crash_kinds import (
    PLAIN,
    SHARDED,
    Kind,
    attempt,
    check_saved,
    train,
)
from pytest_cplife.scenarios.editing import offer
from pytest_cplife.scenarios.meeting import Meeting, meeting
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.replacing import replace


def killed(rank: Rank, order: Order) -> None:
    """Save over a checkpoint, and have a rank killed when its file is half written."""
    _kill(rank, order, PLAIN)


def killed_sharded(rank: Rank, order: Order) -> None:
    """The same with sharded checkpoints."""
    _kill(rank, order, SHARDED)


def _kill(rank: Rank, order: Order, kind: Kind) -> None:
    stage = set_stage(rank, order)
    if not rank.own_process:
        stage.recorder.absent("ranks that share a process cannot be killed one by one", "killed")
        return
    run = stage.start()
    if not kind.is_offered(stage, run):
        return
    path = order.output
    with meeting() as all_ranks:
        train(stage, run)
        stage.recorder.moment("generation 1", run)
        with stage.recorder.phase("save"):
            kind.save(run, path)
            all_ranks.wait()
            check_saved(path)
        with stage.recorder.phase("replace"):
            refusal = replace(stage, all_ranks, kind, run, path)
        if refusal:
            stage.recorder.absent(refusal, "killed")
            stage.close(run)
            return
        train(stage, run)
        stage.recorder.moment("generation 2", run)
        size = largest_file(path) // 2
        for victim in dict.fromkeys((0, rank.world_size - 1)):
            if not _survives(stage, run, kind, path, size, victim, all_ranks):
                return
    stage.recorder.absent("no rank writes a checkpoint's largest file itself", "killed")
    stage.close(run)


def _survives(
    stage: Stage,
    run: TrainingRun,
    kind: Kind,
    path: Path,
    size: int,
    victim: int,
    all_ranks: Meeting,
) -> bool:
    """Save where `victim` dies at a write beyond `size`; False where it has died."""
    doomed = stage.rank.rank == victim
    if doomed:
        stage.recorder.fact("doomed", True)
    all_ranks.wait()
    with full_disk(size, deadly=True) if doomed else nullcontext():
        attempt(lambda: kind.save(run, path))
    if doomed:
        stage.recorder.fact("doomed", False)
    try:
        all_ranks.wait()
    except RuntimeError:
        return False  # the others' connection to it is broken
    return True


def restarting(rank: Rank, order: Order) -> None:
    """In fresh processes: load what a killed save left, go on, save over it, and load that."""
    _restart(rank, order, PLAIN)


def restarting_sharded(rank: Rank, order: Order) -> None:
    """The same with sharded checkpoints."""
    _restart(rank, order, SHARDED)


def _restart(rank: Rank, order: Order, kind: Kind) -> None:
    stage = set_stage(rank, order)
    path = order.source
    assert path is not None
    run = stage.start()
    with meeting() as all_ranks:
        with stage.recorder.phase("load an interrupted save"):
            outcome = offer(lambda: kind.load(run, path), run)
            outcomes = all_ranks.gather(outcome)
        stage.recorder.fact("refused", outcome)
        if not outcome:
            stage.recorder.moment("after load", run)
    if any(outcomes):
        # As a job that finds no checkpoint: from the beginning, into the same place.
        stage.close(run)
        run = stage.start()
    with meeting() as all_ranks:
        train(stage, run)
        stage.recorder.moment("after restart", run)
        with stage.recorder.phase("save again"):
            kind.save(run, path)
            all_ranks.wait()
        if rank.rank == 0:
            stage.recorder.fact("names", names_in(path.parent))
    stage.close(run)
    run = stage.start()
    with stage.recorder.phase("load"):
        kind.load(run, path)
        run.ready()
    stage.recorder.moment("loaded again", run)
    stage.close(run)
