"""Sharded checkpoints that are written in the background, while the training goes on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.layout import view_layout
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash_faults import below, listening
from pytest_cplife.scenarios.crash_kinds import attempt, check_saved
from pytest_cplife.scenarios.meeting import meeting
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.scripts import next_step, train_to_save_point

_NEEDS = ("save_sharded_async", "load_sharded")
_PATIENCE = 20.0
"""Seconds after which a held writer goes on, so that a trainer that waits for it does not hang."""


class Writers:
    """The threads beside this one that open files below `folder` to write: held, or failed."""

    def __init__(self, folder: Path, *, fail: bool = False) -> None:
        self.met = False
        self.fail = fail
        self._folder = folder.resolve()
        self._owner = threading.get_ident()
        self._gate = threading.Event()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or threading.get_ident() == self._owner:
            return
        path, mode, flags = arguments
        writes = any(c in (mode or "") for c in "wxa+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if not writes or not below(path, -1, self._folder):
            return
        self.met = True
        if self.fail:
            raise OSError(errno.ENOSPC, "no space left, as the suite has it", str(path))
        self._gate.wait(_PATIENCE)

    def let_go(self) -> None:
        self._gate.set()


def begun(rank: Rank, order: Order) -> None:
    """Begin a save, go on for a step and spoil all tensors before anything can be written."""
    stage = set_stage(rank, order)
    run = stage.start()
    if not offers(stage, run):
        return
    train_to_save_point(stage, run)
    stage.recorder.moment("before save", run)
    writers = Writers(order.output.parent)
    with listening(writers, rank.own_process):
        with stage.recorder.phase("begin save"):
            pending = run.save_sharded_async(order.output)
        with stage.recorder.phase("train on"):
            next_step(stage, run)
        _spoil(run)
        writers.let_go()
        with stage.recorder.phase("wait"):
            pending.result()
            stage.barrier()
            check_saved(order.output)
    stage.recorder.fact("writers held", writers.met)
    if rank.rank == 0:
        with stage.recorder.phase("read layout"):
            stage.recorder.fact("layout", view_layout(order.output))
    stage.close(run)


def begun_again(rank: Rank, order: Order) -> None:
    """In other processes: load what was saved in the background."""
    stage = set_stage(rank, order)
    assert order.source is not None
    run = stage.start()
    with stage.recorder.phase("load sharded"):
        run.load_sharded(order.source)
        run.ready()
    stage.recorder.moment("after load", run)
    stage.close(run)


def begun_in_vain(rank: Rank, order: Order) -> None:
    """The last rank's disk is full for the writers; then a further save, which could be made."""
    stage = set_stage(rank, order)
    run = stage.start()
    if not offers(stage, run):
        return
    train_to_save_point(stage, run)
    writers = Writers(order.output.parent, fail=rank.rank == rank.world_size - 1)
    writers.let_go()
    with meeting() as ranks, stage.recorder.phase("save in vain"):
        with listening(writers, rank.own_process):
            outcome = attempt(_save(run, order.output))
            ranks.wait()
        stage.recorder.fact("writers failed", any(ranks.gather(writers.met and writers.fail)))
        stage.recorder.fact("at the wait", outcome)
        stage.recorder.fact("at the next", attempt(_save(run, order.output.with_name("next"))))
        ranks.wait()
    stage.close(run)


def _save(run: TrainingRun, path: Path) -> Callable[[], None]:
    def save() -> None:
        run.save_sharded_async(path).result()

    return save


def offers(stage: Stage, run: TrainingRun) -> bool:
    """Whether the run saves in the background; where it does not, that is noted and it ends."""
    lacking = [name for name in _NEEDS if name not in stage.offered(run)]
    why = f"capability {', '.join(lacking)} is not offered" if lacking else ""
    if not stage.rank.own_process:
        why = "ranks that share a process cannot communicate in the background"
    if why:
        stage.recorder.absent(
            why, *("before save", "layout", "at the wait", "first save", "after load", "refused")
        )
        stage.close(run)
    return not why


@torch.no_grad()
def _spoil(run: TrainingRun) -> None:
    """Change every live tensor in place."""
    tensors: list[Tensor] = [*run.model.parameters(), *run.model.buffers()]
    tensors += [
        value
        for optimizer in run.optimizers
        for entries in optimizer.state.values()
        for value in entries.values()
        if isinstance(value, Tensor)
    ]
    tensors += list((run.ema or {}).values())
    for tensor in tensors:
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()
