"""Transfer loads: weights of another training, of which the model has some, most or none."""

from __future__ import annotations

import torch

from pytest_cplife.adapter import LifecycleAdapter, TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.evidence.snapshot import module_tensors
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import Edit, NothingToEdit, editable, offer_edits
from pytest_cplife.scenarios.order import Order, Stage, set_stage
from pytest_cplife.scenarios.tampering import resized


def transferred(rank: Rank, order: Order) -> None:
    """Give `load_pretrained` the trainer's own file, and what other trainings would have left."""
    stage = set_stage(rank, order)
    if type(stage.adapter).load_pretrained is LifecycleAdapter.load_pretrained:
        stage.recorder.absent("capability load_pretrained is not offered", *EDITS)
        return
    offer_edits(stage, EDITS, load=stage.adapter.load_pretrained)


def _own(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    return "weights"


def _without(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """The last trained module at the top of the model is not in the file."""
    live = module_tensors(run.model, "parameters")
    objects = [id(tensor) for tensor in live.values()]
    # What is tied to a weight that is in the file has a value all the same.
    tied = {name for name, tensor in live.items() if objects.count(id(tensor)) > 1}
    tops: dict[str, list[str]] = {}
    for name in view.model:
        tops.setdefault(name.partition(".")[0], []).append(name)
    for top, names in reversed(tops.items()):
        trained = [name for name in names if name in live and live[name].requires_grad]
        if trained and not tied & set(names) and 2 * len(names) < len(view.model):
            for name in names:
                del editable(view.model)[name]
            stage.recorder.fact("left out", names)
            return top
    raise NothingToEdit("no module at the top of the model can be left out")


def _with_more(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = "a_head_of_another_task.weight"
    editable(view.model)[name] = torch.zeros(2, 2)
    return name


def _foreign(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    _rename(view, "{}_of_another_model")
    return "weights"


def _prefixed(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    _rename(view, "backbone.{}")
    return "weights"


def _rename(view: CheckpointView, pattern: str) -> None:
    model = editable(view.model)
    for name in list(model):
        model[pattern.format(name)] = model.pop(name)


EDITS: dict[str, Edit] = {
    "its own weights": _own,
    "a module less": _without,
    "a module more": _with_more,
    "a weight of another width": resized,
    "foreign names": _foreign,
    "another prefix": _prefixed,
}
"""By name: what the other training has left."""
