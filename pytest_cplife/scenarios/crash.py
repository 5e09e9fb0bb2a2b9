"""Saves that are interrupted, and what a restart finds; the same for both kinds of checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.folders import (
    FolderState,
    StateBook,
    largest_file,
    names_in,
    tree_digest,
)
from pytest_cplife.launchers.base import Rank
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
from pytest_cplife.scenarios.crash_states import Watch, choose, halfway
from pytest_cplife.scenarios.editing import offer
from pytest_cplife.scenarios.meeting import Meeting, meeting
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.replacing import come_together, replace

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


def beside(order: Order, name: str, all_ranks: Meeting) -> Path:
    """A new path for a checkpoint, in a folder of its own. Collective."""
    place = order.folder / name / order.output.name
    place.parent.mkdir(parents=True, exist_ok=True)
    all_ranks.wait()
    return place


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
