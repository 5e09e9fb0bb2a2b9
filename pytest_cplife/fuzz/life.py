"""On a rank: one stretch of a plan, from the start of a run to its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.fuzz.plans import Step
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, seed_streams, set_stage


@dataclass(frozen=True, slots=True)
class Life:
    """What one run does.

    Attributes:
        order: adapter, mesh and folders; `order.source` is loaded first where it is set.
        sharded: the source was written by ``save_sharded``.
        steps: what is done then; none of them is a restart.
        unit: optimizer steps that one step of ``train`` stands for: an epoch, where a trainer saves
            at the end of one only.
        checkpoints: the folder of the plan's checkpoints, which other lives read.
    """

    order: Order
    sharded: bool
    steps: tuple[Step, ...]
    checkpoints: Path
    unit: int = 1

    def slot(self, number: int) -> Path:
        return self.checkpoints / f"slot{number}"


def live(rank: Rank, life: Life) -> None:
    """Carry out a life; the journal has the state after each step, and where it ended."""
    stage = set_stage(rank, life.order)
    run = stage.start()
    _without_dropout(run.model)
    stage.recorder.moment("start", run)
    if life.order.source is not None:
        with stage.recorder.phase("load"):
            _load(run, life.order.source, life.sharded)
        stage.recorder.moment("load", run)
    for number, step in enumerate(life.steps):
        with stage.recorder.phase(step.operation):
            _do(stage, run, life, step, number)
    stage.close(run)


def _do(stage: Stage, run: TrainingRun, life: Life, step: Step, number: int) -> None:
    label = f"{number} {step.operation}"
    if step.operation == "train":
        for count in range(step.count * life.unit):
            # What a step draws depends on which step it is and on nothing else, so that a run
            # that was stopped can be held against one that never was.
            seed_streams(stage.order.seed, stage.rank.rank, 1 + run.global_step)
            run.train(1)
            stage.recorder.moment(f"{label} {count}", run)
        return
    if step.operation == "save":
        run.save(life.slot(step.slot))
    elif step.operation == "save_sharded":
        run.save_sharded(life.slot(step.slot))
    elif step.operation == "load":
        _load(run, life.slot(step.slot), step.sharded)
    elif step.operation == "swap_ema":
        with run.ema_weights():
            stage.recorder.moment(f"{label} inside", run)
    else:
        raise ValueError(f"a life does not know the operation {step.operation!r}")
    stage.recorder.moment(label, run)


def _load(run: TrainingRun, path: Path, sharded: bool) -> None:
    if sharded:
        run.load_sharded(path)
    else:
        run.load(path)
    run.ready()


def _without_dropout(model: torch.nn.Module) -> None:
    # Ranks of another mesh drop other elements; nothing could be compared between meshes.
    for module in model.modules():
        if "Dropout" in type(module).__name__ and hasattr(module, "p"):
            vars(module)["p"] = 0.0
