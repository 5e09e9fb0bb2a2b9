"""Sharded checkpoints: saved, loaded in other processes and on other meshes, and damaged."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.layout import read_model_part, view_layout
from pytest_cplife.evidence.observe import view_tensor
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.damaging import DAMAGES, damaged_copy
from pytest_cplife.scenarios.editing import NothingToEdit, heard, offer
from pytest_cplife.scenarios.marking import forget, ran
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.scripts import next_step, train_to_save_point

_WANTED = ("before save", "after save", "after load", "after next step", "layout", *DAMAGES)


def sharding(rank: Rank, order: Order) -> None:
    """Train to the save point, save sharded, and go on for a step."""
    stage = set_stage(rank, order)
    run = stage.start()
    if not _offers(stage, run):
        return
    train_to_save_point(stage, run)
    stage.recorder.moment("before save", run)
    with stage.recorder.phase("save sharded"):
        run.save_sharded(order.output)
    stage.recorder.moment("after save", run)
    with stage.recorder.phase("train on"):
        next_step(stage, run)
    if rank.rank == 0:
        with stage.recorder.phase("read layout"):
            stage.recorder.fact("layout", view_layout(order.output))
    stage.close(run)


def unsharding(rank: Rank, order: Order) -> None:
    """In other processes: load the sharded checkpoint, go on for a step, and save sharded again."""
    stage = set_stage(rank, order)
    run = stage.start()
    stage.recorder.moment("start", run)
    _load(stage, run)
    with stage.recorder.phase("train on"):
        next_step(stage, run)
        if stage.adapter.save_points == "epoch_end":
            # The next save is possible at the end of the stretch.
            stage.recorder.train("rest", run, order.steps[1] - 1)
    stage.recorder.moment("before second save", run)
    with stage.recorder.phase("save sharded again"):
        run.save_sharded(order.output)
    stage.close(run)


def unsharding_again(rank: Rank, order: Order) -> None:
    """In other processes again: load what the resumed run has saved."""
    stage = set_stage(rank, order)
    run = stage.start()
    _load(stage, run)
    stage.close(run)


def resharding(rank: Rank, order: Order) -> None:
    """Load what was saved sharded on another mesh."""
    stage = set_stage(rank, order)
    run = stage.start()
    _load(stage, run)
    stage.close(run)


def sharded_files(rank: Rank, order: Order) -> None:
    """Without a process group: read the model's tensors, and nothing else, by torch's own tools."""
    stage = set_stage(rank, order)
    assert order.source is not None
    with stage.recorder.phase("read the model's part"):
        names = list(stage.adapter.build_serial_model().state_dict())
        tensors = read_model_part(order.source, names)
    store = stage.recorder.store
    stage.recorder.fact("model's part", {n: view_tensor(t, store) for n, t in tensors.items()})


def damaged(rank: Rank, order: Order) -> None:
    """Offer damaged copies of the sharded checkpoint, each to a run of its own."""
    stage = set_stage(rank, order)
    for name in DAMAGES:
        copy = order.output.with_name(name.replace(" ", "-"))
        if rank.rank == 0:
            _damage(stage, copy, name)
        run = stage.start()
        # The others learn from the folder whether there was anything to damage.
        stage.barrier()
        if copy.exists():
            _offer(stage, run, copy, name)
        elif rank.rank:
            stage.recorder.absent("rank 0 found nothing to damage", name)
        stage.close(run)


def _damage(stage: Stage, copy: Path, name: str) -> None:
    assert stage.order.source is not None
    with stage.recorder.phase("damage"):
        try:
            touched = damaged_copy(stage.order.source, copy, name)
        except NothingToEdit as reason:
            stage.recorder.absent(str(reason), name, f"{name}: before", f"{name}: after")
        else:
            stage.recorder.fact(f"damaged {name}", touched)


def _offer(stage: Stage, run: TrainingRun, copy: Path, name: str) -> None:
    stage.recorder.moment(f"{name}: before", run)
    forget(name)
    with stage.recorder.phase(f"offer a checkpoint with {name}"):
        with heard() as told:
            outcome = offer(lambda: run.load_sharded(copy), run)
        stage.barrier()
    stage.recorder.fact(name, outcome)
    stage.recorder.fact(f"{name}: told", told)
    stage.recorder.fact(f"{name}: ran", ran(name))
    stage.recorder.moment(f"{name}: after", run)


def _offers(stage: Stage, run: TrainingRun) -> bool:
    lacking = [n for n in ("save_sharded", "load_sharded") if n not in stage.offered(run)]
    if lacking:
        stage.recorder.absent(f"capability {', '.join(lacking)} is not offered", *_WANTED)
        stage.close(run)
    return not lacking


def _load(stage: Stage, run: TrainingRun) -> None:
    assert stage.order.source is not None
    with stage.recorder.phase("load sharded"):
        run.load_sharded(stage.order.source)
        run.ready()
    stage.recorder.moment("after load", run)
