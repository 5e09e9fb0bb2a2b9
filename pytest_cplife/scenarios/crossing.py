"""From one topology to another: between meshes, and by way of a serial run."""

from __future__ import annotations

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.snapshot import rng_digests
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.onward import go_on, resume_twice
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.scripts import load, train_to_save_point


def crossed(rank: Rank, order: Order) -> None:
    """Load what was saved on another mesh, and go on."""
    stage = set_stage(rank, order)
    run = stage.start()
    stage.recorder.moment("start", run)
    load(stage, run)
    stage.predict("prediction", run)
    go_on(stage, run, "onward")
    stage.close(run)
    assert order.source is not None
    run = stage.start()
    with stage.recorder.phase("load again"):
        run.load(order.source)
        run.ready()
    stage.recorder.fact("streams again", rng_digests())
    stage.close(run)


def serial_saving(rank: Rank, order: Order) -> None:
    """A serial run: train, save, and go on from the file."""
    stage = set_stage(rank, order)
    run = _start(stage)
    if run is None:
        return
    train_to_save_point(stage, run)
    stage.recorder.moment("before save", run)
    with stage.recorder.phase("save"):
        try:
            run.save(order.output)
        except NotImplementedError as reason:
            stage.recorder.absent(f"a serial run does not save ({reason})", "before save")
            return
    stage.close(run)
    resume_twice(stage.reading(order.output))


def from_serial(rank: Rank, order: Order) -> None:
    """On the mesh: load what the serial run saved, and go on."""
    stage = set_stage(rank, order)
    run = stage.start()
    load(stage, run)
    go_on(stage, run, "onward")
    stage.close(run)


def through_serial(rank: Rank, order: Order) -> None:
    """A serial run: load what the mesh saved, save it again at once, and go on."""
    stage = set_stage(rank, order)
    run = _start(stage)
    if run is None:
        return
    try:
        load(stage, run)
        with stage.recorder.phase("save again"):
            run.save(order.output)
    except NotImplementedError as reason:
        stage.recorder.absent(f"a serial run does not load and save ({reason})", "after load")
        return
    stage.predict("prediction", run)
    go_on(stage, run, "onward")
    stage.close(run)


def crossed_back(rank: Rank, order: Order) -> None:
    """On the mesh: load what a serial run made of another mesh's checkpoint."""
    stage = set_stage(rank, order)
    run = stage.start()
    load(stage, run)
    stage.close(run)


def _start(stage: Stage) -> TrainingRun | None:
    """A serial run; None, and a note, where the trainer has none."""
    try:
        return stage.start()
    except NotImplementedError as reason:
        why = f"no serial run is offered ({reason or 'start() refuses'})"
        stage.recorder.absent(why, "start")
        return None
