"""Offering a trainer files of another architecture, which it must refuse."""

from __future__ import annotations

import copy

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import Edit, editable, offer_edits, weights
from pytest_cplife.scenarios.order import Order, Stage, set_stage


def refusing(rank: Rank, order: Order) -> None:
    """Load files in which a model's weight is missing, of another size, or unknown."""
    offer_edits(set_stage(rank, order), EDITS)


def _missing(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = weights(view)[-1]
    del editable(view.model)[name]
    return name


def _resized(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = max(weights(view), key=lambda key: int(view.model[key].ndim))
    tensor = view.model[name]
    editable(view.model)[name] = torch.cat([tensor, tensor[:1]])
    return name


def _unknown(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = "a_module_of_another_architecture.weight"
    editable(view.model)[name] = copy.deepcopy(view.model[weights(view)[0]])
    return name


EDITS: dict[str, Edit] = {
    "a missing weight": _missing,
    "a weight of another size": _resized,
    "an unknown weight": _unknown,
}
"""By name: what is wrong with the file."""
