"""A save between backward and step: called from inside the step, where gradients are there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.observe import view_tensor
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.scripts import next_step, train_to_save_point

_WANTED = (
    "saved",
    "before save",
    "after save",
    "gradients before",
    "gradients after",
    "saved midway",
)


def midway(rank: Rank, order: Order) -> None:
    """Train to the save point; save when the next gradients are there, then make the step."""
    stage = set_stage(rank, order)
    run = stage.start()
    train_to_save_point(stage, run)
    with _saving_before_next_step(stage, run), stage.recorder.phase("train on"):
        next_step(stage, run)
    if rank.rank == 0 and order.output.exists():
        with stage.recorder.phase("read"):
            view = stage.adapter.read_checkpoint(order.output)
        stage.file("saved midway", order.output, view)
    stage.close(run)


@contextmanager
def _saving_before_next_step(stage: Stage, run: TrainingRun) -> Iterator[None]:
    """Save at the next call of the first optimizer's ``step()``, which all ranks reach alike."""
    caller = threading.get_ident()
    calls = iter((True,))

    def before(optimizer: object, args: object, kwargs: object) -> None:
        if not next(calls, False):
            return
        if threading.get_ident() != caller:
            # A loop of its own: its save() waits for that thread, which is the one that is here.
            why = "the optimizer steps in another thread than the one that calls train()"
            stage.recorder.absent(why, *_WANTED)
            return
        stage.recorder.moment("before save", run)
        stage.recorder.fact("gradients before", _gradients(stage, run))
        try:
            with stage.recorder.phase("save"):
                run.save(stage.order.output)
        except NotImplementedError as reason:
            stage.recorder.absent(f"no save between backward and step ({reason})", *_WANTED)
            return
        stage.recorder.fact("saved", stage.order.output.exists())
        stage.recorder.moment("after save", run)
        stage.recorder.fact("gradients after", _gradients(stage, run))

    hook = run.optimizers[0].register_step_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()


def _gradients(stage: Stage, run: TrainingRun) -> dict[str, TensorRecord]:
    return {
        name: view_tensor(parameter.grad, stage.recorder.store)
        for name, parameter in run.named_parameters()
        if parameter.grad is not None
    }
