"""Offering a trainer files that do not fit it, or each other."""

from __future__ import annotations

import copy

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios import optimizer_edits
from pytest_cplife.scenarios.editing import Edit, NothingToEdit, editable, offer_edits, weights
from pytest_cplife.scenarios.order import Order, Stage, set_stage


def refusing(rank: Rank, order: Order) -> None:
    """Load files that do not fit the model or its optimizer, and one per rank that differ."""
    stage = set_stage(rank, order)
    offer_edits(stage, EDITS, stepped=(_GONE,), apart=(_APART,))


def _missing(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = weights(view)[-1]
    del editable(view.model)[name]
    return name


def resized(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = max(weights(view), key=lambda key: int(view.model[key].ndim))
    tensor = view.model[name]
    editable(view.model)[name] = torch.cat([tensor, tensor[:1]])
    return name


def _unknown(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = "a_module_of_another_architecture.weight"
    editable(view.model)[name] = copy.deepcopy(view.model[weights(view)[0]])
    return name


def _another_step(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """Every weight as if it had been trained on; for all ranks but the first."""
    if stage.rank.world_size == 1:
        raise NothingToEdit("one rank reads one file")
    names = [name for name in weights(view) if view.model[name].is_floating_point()]
    for name in names:
        editable(view.model)[name] = view.model[name] + 1.0
    stage.recorder.fact(f"names of {_APART}", names)
    return names[0]


_GONE = "no state of one parameter"
_APART = "another step on other ranks"

EDITS: dict[str, Edit] = {
    "a missing weight": _missing,
    "a weight of another size": resized,
    "an unknown weight": _unknown,
    _GONE: optimizer_edits.missing,
    _APART: _another_step,
    "optimizer state of another size": optimizer_edits.resized,
}
"""By name: what is wrong with the file. The last may well hang the ranks."""
