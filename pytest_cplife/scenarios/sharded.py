"""Sharded checkpoints: saved, loaded in other processes and on other meshes, and damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.layout import data_files, view_layout
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import offer
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.scripts import next_step, train_to_save_point

DAMAGES = ("a missing rank file", "a truncated rank file", "a flipped bit")
"""What is done to copies of a sharded checkpoint, each of which must be refused."""

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
    """In other processes: load the sharded checkpoint and go on for a step."""
    stage = set_stage(rank, order)
    run = stage.start()
    stage.recorder.moment("start", run)
    _load(stage, run)
    with stage.recorder.phase("train on"):
        next_step(stage, run)
    stage.close(run)


def resharding(rank: Rank, order: Order) -> None:
    """Load what was saved sharded on another mesh."""
    stage = set_stage(rank, order)
    run = stage.start()
    _load(stage, run)
    stage.close(run)


def damaged(rank: Rank, order: Order) -> None:
    """Offer damaged copies of the sharded checkpoint, each to a run of its own."""
    stage = set_stage(rank, order)
    assert order.source is not None
    for name in DAMAGES:
        copy = order.output.with_name(name.replace(" ", "-"))
        if rank.rank == 0:
            with stage.recorder.phase("damage"):
                stage.recorder.fact(f"damaged {name}", _damage(order.source, copy, name))
        run = stage.start()
        stage.barrier()
        stage.recorder.moment(f"{name}: before", run)
        with stage.recorder.phase(f"offer a checkpoint with {name}"):
            outcome = offer(lambda copy=copy, run=run: run.load_sharded(copy), run)  # type: ignore[misc]
            stage.barrier()
        stage.recorder.fact(name, outcome)
        stage.recorder.moment(f"{name}: after", run)
        stage.close(run)


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


def _damage(source: Path, copy: Path, name: str) -> str:
    """Copy the checkpoint and spoil its largest data file; returns that file's name."""
    shutil.copytree(source, copy)
    victim = max(data_files(copy), key=lambda file: file.stat().st_size)
    if name == "a missing rank file":
        victim.unlink()
    elif name == "a truncated rank file":
        with victim.open("r+b") as file:
            file.truncate(victim.stat().st_size // 2)
    else:
        _flip(victim)
    return victim.name


def _flip(path: Path) -> None:
    """Flip one bit in the middle of the largest run of tensor bytes, as far as can be told.

    The middle of the file is tensor data in any layout that is not mostly headers.
    """
    with path.open("r+b") as file:
        position = path.stat().st_size // 2
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x10]))
