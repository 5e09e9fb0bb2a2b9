"""On a rank: one stretch of a plan, from the start of a run to its end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.fuzz.plans import Step
from pytest_cplife.fuzz.ranks import all_raised
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.crash_faults import full_disk
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.rounding import nudging

FULL_AT = 1024
"""Bytes that fit into a file on a full disk: the head of a checkpoint, and hardly any tensor."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one run does.

    Attributes:
        order: adapter, mesh and folders; `order.source` is loaded first where it is set.
        sharded: the source was written by ``save_sharded``.
        steps: what is done then; none of them is a restart.
        slots: where each checkpoint is that is read, or is to be written, by its number.
        unit: optimizer steps that one step of ``train`` stands for: an epoch, where a trainer saves
            at the end of one only.
        nudged: gradients are off by a rounding error.
    """

    order: Order
    sharded: bool
    steps: tuple[Step, ...]
    slots: Mapping[int, Path]
    unit: int = 1
    nudged: bool = False


def label(number: int, step: Step) -> str:
    """The name of the moment after step `number` of a life."""
    return f"{number} {step.operation}"


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
    with nudging(run) if life.nudged else nullcontext():
        for number, step in enumerate(life.steps):
            with stage.recorder.phase(step.operation):
                _do(stage, run, life, step, label(number, step))
    stage.close(run)


def _do(stage: Stage, run: TrainingRun, life: Life, step: Step, name: str) -> None:
    if step.operation == "train":
        for count in range(step.count * life.unit):
            # What a step draws depends on which step it is and on nothing else, so that a run
            # that was stopped can be held against one that never was.
            stage.seed(1 + run.global_step)
            with stage.recorder.own_draws(f"{name} {count}"):
                run.train(1)
            stage.recorder.samples(f"{name} {count}", run)
            stage.recorder.moment(f"{name} {count}", run)
        return
    if step.operation == "save":
        run.save(life.slots[step.slot])
    elif step.operation == "save_sharded":
        run.save_sharded(life.slots[step.slot])
    elif step.operation == "crash":
        stage.recorder.fact(name, _crash(stage, run, life, step, name))
    elif step.operation == "load":
        _load(run, life.slots[step.slot], step.sharded)
    elif step.operation == "swap_ema":
        with run.ema_weights():
            stage.recorder.moment(f"{name} inside", run)
    else:
        raise ValueError(f"a life does not know the operation {step.operation!r}")
    stage.recorder.moment(name, run)


def _crash(stage: Stage, run: TrainingRun, life: Life, step: Step, name: str) -> str:
    """Save while one rank cannot write; "saved" where that does not stop it, else "refused".

    Raises:
        Exception: what the save raised, where other ranks do not know that it failed: these go on
            to wait for this one, so that the life is over.
    """
    rank, path = stage.rank, life.slots[step.slot]
    hindered = rank.rank == step.rank % rank.world_size
    try:
        with full_disk(FULL_AT) if hindered else nullcontext():
            if step.sharded:
                run.save_sharded(path)
            else:
                run.save(path)
    except Exception:
        if not all_raised(rank, life.order.folder / name):
            raise
        return "refused"
    return "saved"


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
