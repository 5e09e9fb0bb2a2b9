"""Saves in which one rank cannot write, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pytest_cplife.evidence.folders import (
    FolderState,
    largest_file,
    names_in,
    tree_digest,
)
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash import beside
from pytest_cplife.scenarios.crash_faults import Renames, full_disk, listening
from pytest_cplife.scenarios.crash_kinds import (
    PLAIN,
    SHARDED,
    Kind,
    attempt,
    book_of,
    check_saved,
    train,
)
from pytest_cplife.scenarios.meeting import meeting
from pytest_cplife.scenarios.order import Order, set_stage
from pytest_cplife.scenarios.replacing import come_together, replace


def failing(rank: Rank, order: Order) -> None:
    """Save where one rank cannot, over a checkpoint and to fresh paths; then go on.

    A trainer that never saves over a checkpoint meets all troubles at fresh paths.
    """
    _fail(rank, order, PLAIN)


def failing_sharded(rank: Rank, order: Order) -> None:
    """The same with sharded checkpoints."""
    _fail(rank, order, SHARDED)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong in one save, and on which rank.

    Attributes:
        name: in words.
        rank: the only rank that meets it.
        size: bytes beyond which no file grows; None: the disk is not full.
        rename: the number of the rename that fails, 0 for none.
        fresh: whether it is met at a new path as well.
    """

    name: str
    rank: int
    size: int | None = None
    rename: int = 0
    fresh: bool = False

    def __str__(self) -> str:
        return f"{self.name} on rank {self.rank}"

    def arm(self, rank: Rank, folder: Path) -> AbstractContextManager[None]:
        if rank.rank != self.rank:
            return nullcontext()
        if self.size is not None:
            return full_disk(self.size)
        return listening(Renames(folder, self.rename), rank.own_process)


def troubles(rank: Rank, largest: int, renames: list[int]) -> Iterator[Trouble]:
    """The troubles that a save meets, one after the other.

    Args:
        rank: whose world it is.
        largest: bytes of the largest file of a checkpoint.
        renames: how many renames each rank makes in a save.
    """
    if rank.own_process:  # the limit is one of the process
        yield Trouble("a disk full from the first byte", 0, size=0)
        yield Trouble("a disk full at half of the file", 0, size=largest // 2)
        yield Trouble("a disk full at the last byte", 0, size=largest - 1, fresh=True)
        if rank.world_size > 1:
            last = rank.world_size - 1
            yield Trouble("a disk full at half of the file", last, size=largest // 2, fresh=True)
    for number, count in enumerate(renames):
        if count:
            yield Trouble("the first rename fails", number, rename=1, fresh=count == 1)
            if count > 1:
                yield Trouble("the last rename fails", number, rename=count, fresh=True)
            return


def _fail(rank: Rank, order: Order, kind: Kind) -> None:
    stage = set_stage(rank, order)
    run = stage.start()
    if not kind.is_offered(stage, run):
        return
    path, book = order.output, book_of(order.output)
    with meeting() as all_ranks:
        train(stage, run)
        stage.recorder.moment("generation 1", run)
        counter = Renames(path.parent)
        with stage.recorder.phase("save"):
            kind.save(run, path)
            all_ranks.wait()
        with stage.recorder.phase("replace"), listening(counter, rank.own_process):
            refusal = replace(stage, all_ranks, kind, run, path)
        if refusal:
            place = beside(order, "counted", all_ranks)
            counter = Renames(place.parent)
            with stage.recorder.phase("save"), listening(counter, rank.own_process):
                kind.save(run, place)
        all_ranks.wait()
        stage.recorder.fact("refusal", refusal)
        check_saved(path)
        largest, renames = largest_file(path), all_ranks.gather(counter.count)
        older = book.keep(path.parent) if rank.rank == 0 else ""
        intact = tree_digest(path) if rank.rank == 0 else ""
        train(stage, run)
        stage.recorder.moment("generation 2", run)
        states = []
        for number, trouble in enumerate(troubles(rank, largest, renames)):
            over = [] if refusal else [False]
            for fresh in [*over, True] if trouble.fresh or refusal else over:
                place = beside(order, f"fresh {number}", all_ranks) if fresh else path
                name = f"{trouble} {'at a new path' if fresh else 'over a checkpoint'}"
                stage.recorder.fact("attempt", name)
                with stage.recorder.phase("failing save"):
                    with trouble.arm(rank, place.parent):
                        outcome = attempt(lambda place=place: kind.save(run, place))  # type: ignore[misc]
                    come_together(stage, all_ranks, outcome)
                stage.recorder.fact(name, outcome)
                if rank.rank == 0:
                    left = tree_digest(place)
                    # What is known already need not be loaded.
                    known = left == ("" if fresh else intact)
                    tree = "" if known else book.keep(place.parent)
                    states.append(FolderState(name, tree, left, fresh))
                    if not known and not fresh:
                        book.put_back_one(older, place)
        stage.recorder.moment("after failed saves", run)
        train(stage, run)
        stage.recorder.moment("generation 3", run)
        place = beside(order, "again", all_ranks) if refusal else path
        with stage.recorder.phase("save again"):
            kind.save(run, place)
            all_ranks.wait()
        if rank.rank == 0:
            last = FolderState("generation 3", book.keep(place.parent), tree_digest(place), False)
            stage.recorder.fact("names", names_in(place.parent))
            stage.recorder.fact("older checkpoint", intact)
            stage.recorder.fact("states", states)
            book.write([last, *(state for state in states if state.tree)])
    stage.close(run)
