"""A folder of checkpoints: filled save after save, and what a restart takes from it."""

from __future__ import annotations

import errno
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.folders import FolderState, tree_digest, tree_size
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash import recover
from pytest_cplife.scenarios.crash_faults import below, listening
from pytest_cplife.scenarios.crash_kinds import Kind, attempt, book_of, train
from pytest_cplife.scenarios.crash_states import Watch, choose
from pytest_cplife.scenarios.editing import offer
from pytest_cplife.scenarios.meeting import Meeting, meeting
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.replacing import come_together

NONE = "load_newest() finds no checkpoint"
NEWEST_ENTRY = "newest"
"""The list in the book that tells which entry of the folder the newest checkpoint is."""
WITHOUT = "without a file"
"""The moment after a load from a folder whose newest checkpoint lacks a file."""
_GENERATIONS = 4
_WATCHED = (2, _GENERATIONS)
"""The first save beside another, and one in which an old checkpoint may be removed."""
_STATES = 6
_HEAD_START = 0.3
"""Seconds that ranks which do not make the folder have before it is there."""


def _load_newest(run: TrainingRun, folder: Path) -> None:
    if not run.load_newest(folder):
        raise FileNotFoundError(NONE)


NEWEST = Kind(("save_into", "load_newest"), lambda run, folder: run.save_into(folder), _load_newest)
"""What lies at the path of this kind is the folder."""


def advancing(rank: Rank, order: Order) -> None:
    """Save into a folder after every step, and once where nothing can be removed.

    At the first save there is no folder yet.
    """
    stage = set_stage(rank, order)
    run = stage.start()
    if not NEWEST.is_offered(stage, run):
        return
    folder, book = order.output, book_of(order.output)
    added: list[str] = []
    with meeting() as all_ranks:
        seen: list[FolderState] = []
        for number in range(1, _GENERATIONS + 1):
            name = f"generation {number}"
            train(stage, run)
            stage.recorder.moment(name, run)
            if number == 1:
                added.append(_first(stage, all_ranks, run, folder))
                continue
            before = _entries(folder)
            watch = Watch(book, folder, name, rank.rank, fresh=False)
            watching = listening(watch, rank.own_process) if number in _WATCHED else nullcontext()
            with stage.recorder.phase("save into"), watching:
                NEWEST.save(run, folder)
            all_ranks.wait()
            seen += watch.seen
            added.append(_main_entry(folder, before))
        together = [state for part in all_ranks.gather(seen) for state in part]
        left = _entries(folder)
        last = FolderState(f"generation {_GENERATIONS}", "", tree_digest(folder), False)
        if rank.rank == 0:
            last = _kept(last, book.keep(folder.parent))
        train(stage, run)
        name = f"generation {_GENERATIONS + 1}"
        stage.recorder.moment(name, run)
        with stage.recorder.phase("save where nothing can be removed"):
            with listening(Stuck(folder), rank.own_process):
                outcome = attempt(lambda: NEWEST.save(run, folder))
            all_ranks.wait()
        stage.recorder.fact("stuck", outcome)
        if rank.rank == 0:
            full = FolderState(name, book.keep(folder.parent), tree_digest(folder), False)
            book.write([last, full, *choose(together, _STATES)])
            newest = added[-1] if added[-1] in left else ""
            book.write([FolderState(newest, last.tree, "", False)], NEWEST_ENTRY)
            stage.recorder.fact("added", added)
            stage.recorder.fact("left", sorted(left))
    stage.close(run)


def finding(rank: Rank, order: Order) -> None:
    """In fresh processes: load the newest of what was in the folder at an instant.

    Then once more from the undisturbed folder, of whose newest checkpoint a file has gone missing.
    """
    recover(rank, order, NEWEST)
    _without_a_file(set_stage(rank, order))


def _without_a_file(stage: Stage) -> None:
    path = stage.order.source
    assert path is not None
    book = book_of(path)
    (newest,) = book.read(NEWEST_ENTRY)
    if not newest.name:
        why = "save_into() adds nothing that stays, of which a file could be missing"
        stage.recorder.absent(why, WITHOUT, f"{WITHOUT}: refused", f"{WITHOUT}: which")
        return
    if stage.rank.rank == 0:
        with stage.recorder.phase("take away"):
            book.put_back(newest.tree, path.parent)
            stage.recorder.fact(f"{WITHOUT}: which", _take_away(path / newest.name, path))
    run = stage.start()
    with meeting() as all_ranks:
        all_ranks.wait()
        with stage.recorder.phase("load without a file"):
            outcome = offer(lambda: _load_newest(run, path), run)
            all_ranks.wait()
    stage.recorder.fact(f"{WITHOUT}: refused", outcome)
    if not outcome:
        stage.recorder.moment(WITHOUT, run)
    stage.close(run)


def _take_away(checkpoint: Path, folder: Path) -> str:
    """Remove the largest file of a checkpoint; its name."""
    files = [each for each in sorted(checkpoint.rglob("*")) if each.is_file()]
    victim = max(files, key=lambda each: each.stat().st_size, default=checkpoint)
    victim.unlink()
    return str(victim.relative_to(folder))


def _first(stage: Stage, all_ranks: Meeting, run: TrainingRun, folder: Path) -> str:
    """Save where there is no folder; what that has added to it.

    A trainer may want it to be there. Then it is made, and the save done again.
    """
    with stage.recorder.phase("first save into"):
        with listening(Slow(folder), stage.rank.own_process):
            outcome = attempt(lambda: NEWEST.save(run, folder))
        come_together(stage, all_ranks, outcome)
        stage.recorder.fact("first save", outcome)
        stage.recorder.fact("folder made", folder.exists())
        again = any(all_ranks.gather(outcome))
    if again:
        folder.mkdir(exist_ok=True)
        all_ranks.wait()
        with stage.recorder.phase("save into"):
            NEWEST.save(run, folder)
            all_ranks.wait()
    return _main_entry(folder, set())


def _kept(state: FolderState, tree: str) -> FolderState:
    return FolderState(state.name, tree, state.checkpoint, state.fresh)


def _entries(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def _main_entry(folder: Path, before: set[str]) -> str:
    """The largest entry that a save has added, which is the checkpoint; "" where it added none."""
    new = _entries(folder) - before
    return max(sorted(new), key=lambda name: tree_size(folder / name), default="")


class Slow:
    """A listener that holds up whoever makes `folder`, so that who does not wait comes first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.mkdir" and Path(os.fsdecode(arguments[0])).resolve() == self._folder:
            time.sleep(_HEAD_START)


class Stuck:
    """A listener that lets nothing below `folder` be removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rmdir") and below(arguments[0], arguments[1], self._folder):
            name = os.fsdecode(arguments[0])
            raise OSError(errno.EACCES, f"{os.strerror(errno.EACCES)} (made by the suite)", name)
