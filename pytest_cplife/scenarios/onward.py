"""Steps without dropout from one saved state, which another mesh has to repeat up to rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, set_stage

STEPS = 2
"""Adam's first step after a fresh start hides what it has lost; the second does not."""
_WIDE, _NARROW = 16, 1
OTHER_STREAMS = 100
"""The moment that streams are seeded for where they are to be other ones."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def onward(rank: Rank, order: Order) -> None:
    """Load what the mesh saved and go on."""
    resume_twice(set_stage(rank, order))


def resume_twice(stage: Stage) -> None:
    """Load and go on; then once more, from weights that are shaken a little.

    The second time with other random streams, too: where a step depends on noise that is not
    dropout, the two are far apart, and no other mesh is held to what the first one did.
    """
    for name in ("onward", "shaken"):
        run = stage.start()
        assert stage.order.source is not None
        with stage.recorder.phase("load"):
            run.load(stage.order.source)
            run.ready()
        if name == "shaken":
            shake(run)
        stage.predict(f"{name} prediction", run)
        go_on(stage, run, name)
        stage.close(run)


def go_on(stage: Stage, run: TrainingRun, name: str) -> None:
    """A few steps without dropout, looked at before the first and after each.

    Noise is drawn per rank, so that other meshes could not repeat a step that has any.
    """
    silence(run)
    stage.recorder.moment(name, run)
    stage.align(1)
    if name == "shaken":
        stage.seed(OTHER_STREAMS)
    with stage.recorder.phase("go on"):
        for step in range(1, STEPS + 1):
            with stage.recorder.own_draws(f"{name} {step}"):
                run.train(1)
            stage.recorder.samples(f"{name} {step}", run)
            stage.recorder.moment(f"{name} {step}", run)


def silence(run: TrainingRun) -> None:
    """Set every dropout's probability to 0."""
    for module, _ in dropout_rates(run):
        module.p = 0.0


def dropout_rates(run: TrainingRun) -> list[tuple[Any, float]]:
    """Every dropout module, with its probability."""
    # A probability named `p`, as torch's dropout modules and those made after them have it.
    modules: list[Any] = [m for m in run.model.modules() if hasattr(m, "p")]
    return [(m, m.p) for m in modules if "dropout" in type(m).__name__.lower()]


@torch.no_grad()
def shake(run: TrainingRun) -> None:
    """Multiply every weight by 1 plus or minus a few units in its last place.

    The sign follows from the weight's own bits, so that replicas stay replicas and a shard is
    shaken as its part of the whole would be.
    """
    seen: set[int] = set()
    for _, parameter in run.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
        if id(parameter) in seen or not local.is_floating_point():
            continue
        seen.add(id(parameter))
        odd = local.contiguous().view(_INTEGERS[local.element_size()]) & 1
        units = _WIDE if local.element_size() >= 4 else _NARROW
        change = units * torch.finfo(local.dtype).eps
        local.mul_(1 + (2 * odd - 1).to(local.dtype) * change)
