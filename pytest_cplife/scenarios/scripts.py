"""What is done to a trainer: one function per scenario, run on every rank.

A script only drives and records; what it means is for the rules to say. Each part that the
trainer may fail in is a phase, so that the journal tells where it ended.
"""

from __future__ import annotations

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.filing import module_versions
from pytest_cplife.evidence.observe import view_tensor
from pytest_cplife.evidence.pickles import pickled_files
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.snapshot import module_tensors
from pytest_cplife.evidence.summary import structure
from pytest_cplife.launchers.base import Rank
from pytest_cplife.lookalikes import lookalikes
from pytest_cplife.scenarios.noise import listening
from pytest_cplife.scenarios.onward import OTHER_STREAMS, dropout_rates, silence
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.placeholders import call_placeholders


def uninterrupted(rank: Rank, order: Order) -> None:
    """Start and train to the end without ever saving."""
    stage = set_stage(rank, order)
    run = stage.start()
    stage.recorder.fact("lookalikes", lookalikes(run))
    stage.recorder.moment("start", run)
    _note_plan(stage)
    stage.recorder.fact("placeholders", call_placeholders(run.model, stage.adapter.placeholders))
    train_to_save_point(stage, run)
    stage.recorder.moment("at save point", run)
    train_on(stage, run)
    stage.close(run)


def _note_plan(stage: Stage) -> None:
    assert stage.order.spec is not None
    try:
        plan = stage.adapter.placement_plan(stage.order.spec)
    except NotImplementedError:
        return
    plain = {prefix: dict(placed) for prefix, placed in plan.items()}
    stage.recorder.fact("placement plan", plain)


def saving(rank: Rank, order: Order) -> None:
    """The same, with a save on the way."""
    stage = set_stage(rank, order)
    run = stage.start()
    train_to_save_point(stage, run)
    stage.recorder.moment("before save", run)
    with stage.recorder.phase("save"):
        run.save(order.output)
    stage.recorder.fact("saved", order.output.exists())
    stage.recorder.moment("after save", run)
    written = stage.content(order.output)
    train_on(stage, run)
    stage.recorder.fact("file kept", stage.content(order.output) == written)
    stage.close(run)


def early(rank: Rank, order: Order) -> None:
    """Save before the first step, then make it."""
    stage = set_stage(rank, order)
    run = stage.start()
    stage.recorder.moment("start", run)
    with stage.recorder.phase("save"):
        run.save(order.output)
    stage.recorder.fact("saved", order.output.exists())
    stage.recorder.moment("after save", run)
    stage.align(0)
    with stage.recorder.phase("train"):
        stage.recorder.train("first", run, 1)
    stage.recorder.moment("after first step", run)
    stage.close(run)


def resumed(rank: Rank, order: Order) -> None:
    """In fresh processes: load what `saving` saved, train to the end, save again."""
    stage = set_stage(rank, order)
    run = stage.start()
    stage.recorder.moment("start", run)
    load(stage, run)
    assert order.source is not None
    read = stage.content(order.source)
    train_on(stage, run)
    stage.recorder.fact("file kept", stage.content(order.source) == read)
    with stage.recorder.phase("save again"):
        run.save(order.output)
    stage.close(run)


def serial(rank: Rank, order: Order) -> None:
    """The serial model, and a serial run of one step, without a process group.

    Then the step once more with other noise: dropout is off, but not all noise is dropout.
    """
    stage = set_stage(rank, order)
    with stage.recorder.phase("build"):
        for time in ("first", "second"):
            module = stage.adapter.build_serial_model()
            stage.recorder.fact(f"{time} build", _module(stage, module))
        stage.recorder.fact("versions", module_versions(module.state_dict()))
    try:
        run = stage.start()
    except NotImplementedError as reason:
        stage.recorder.absent(f"no serial run is offered ({reason or 'start() refuses'})", "start")
        return
    stage.recorder.moment("start", run)
    _without_dropout(stage, run)
    stage.close(run)
    again = stage.start()
    silence(again)
    stage.seed(OTHER_STREAMS)
    with stage.recorder.phase("train with other noise"):
        stage.recorder.train("first with other noise", again, 1)
    stage.close(again)


def parity(rank: Rank, order: Order) -> None:
    """One step without dropout, to be compared with the serial run's, and one with its noise."""
    stage = set_stage(rank, order)
    run = stage.start()
    rates = dropout_rates(run)
    _without_dropout(stage, run)
    for module, rate in rates:
        module.p = rate
    with stage.recorder.phase("noisy step"), listening(run) as heard:
        # From the streams that the trainer has given each rank, not from the suite's.
        run.train(1)
    stage.recorder.fact("noise", tuple(heard))
    stage.close(run)


def _without_dropout(stage: Stage, run: TrainingRun) -> None:
    silence(run)
    with stage.recorder.phase("train"):
        stage.recorder.train("first", run, 1)
    stage.recorder.moment("after first step", run)


def files(rank: Rank, order: Order) -> None:
    """Read what was saved, without a process group."""
    stage = set_stage(rank, order)
    assert order.source is not None
    for name, path in (("saved", order.source), ("saved again", order.second_source)):
        if path is None or not path.exists():
            continue
        with stage.recorder.phase(f"read {name}"):
            view = stage.adapter.read_checkpoint(path)
        stage.file(name, path, view)
        if name == "saved":
            stage.recorder.fact("structure", structure(view))
            stage.recorder.fact("pickled files", pickled_files(path))
        del view
    with stage.recorder.phase("load serial"):
        module = stage.adapter.load_serial(order.source)
    stage.recorder.fact("loaded serial", _module(stage, module))


def refusal(rank: Rank, order: Order) -> None:
    """Start a distributed run where there is no process group."""
    stage = set_stage(rank, order)
    with stage.recorder.phase("start"):
        try:
            run = stage.adapter.start(stage.context())
        except Exception as error:
            stage.recorder.fact("refusal", f"{type(error).__name__}: {error}")
            return
        stage.recorder.fact("refusal", "")
    stage.close(run)


def train_to_save_point(stage: Stage, run: TrainingRun) -> None:
    """Train to the save point, looking at the first step; at each, if there is an average."""
    stage.align(0)
    before, _ = stage.order.steps
    with stage.recorder.phase("train"):
        stage.recorder.train("first", run, 1)
        stage.recorder.moment("after first step", run)
        if run.ema is None and before > 1:
            stage.recorder.train("before", run, before - 1)
        elif run.ema is not None:
            # An average is judged along its whole way, so each of its steps is looked at.
            for step in range(2, before + 1):
                stage.recorder.train(f"step {step}", run, 1)
                stage.recorder.moment(f"after step {step}", run)


def train_on(stage: Stage, run: TrainingRun) -> None:
    """From the save point to the end, looking after the first step and at the end."""
    _, after = stage.order.steps
    with stage.recorder.phase("train on"):
        next_step(stage, run)
        stage.align(2)
        if after > 1:
            stage.recorder.train("rest", run, after - 1)
    stage.recorder.moment("end", run)


def next_step(stage: Stage, run: TrainingRun) -> None:
    """The first step from the save point."""
    stage.align(1)
    stage.recorder.train("next", run, 1)
    stage.recorder.moment("after next step", run)


def load(stage: Stage, run: TrainingRun) -> None:
    """Load the order's source and look at what came back, and at the file."""
    assert stage.order.source is not None
    before = stage.content(stage.order.source)
    with stage.recorder.phase("load"):
        run.load(stage.order.source)
        run.ready()
    stage.recorder.moment("after load", run)
    stage.recorder.fact("file unchanged", stage.content(stage.order.source) == before)


def _module(stage: Stage, module: torch.nn.Module) -> dict[str, dict[str, TensorRecord]]:
    return {
        what: {
            name: view_tensor(tensor, stage.recorder.store)
            for name, tensor in module_tensors(module, what).items()
        }
        for what in ("parameters", "buffers")
    } | {
        "state_dict": {
            name: view_tensor(value, stage.recorder.store)
            for name, value in module.state_dict().items()
            if torch.is_tensor(value)
        }
    }
