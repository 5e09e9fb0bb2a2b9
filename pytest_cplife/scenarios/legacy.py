"""Earlier formats, derived from the trainer's own fresh checkpoint."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch.distributed.tensor import Replicate, distribute_tensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import Edit, NothingToEdit, editable, offer_edits, weights
from pytest_cplife.scenarios.order import Order, Stage, set_stage


def legacy(rank: Rank, order: Order) -> None:
    """Load files as earlier versions of trainers wrote them."""
    offer_edits(set_stage(rank, order), EDITS)


def kept(rank: Rank, order: Order) -> None:
    """Load the earlier files that the user keeps."""
    stage = set_stage(rank, order)
    try:
        files = list(stage.adapter.legacy_checkpoints())
    except NotImplementedError:
        stage.recorder.absent("capability legacy_checkpoints is not offered", "kept")
        return
    stage.recorder.fact("kept", [(file.format, file.global_step, file.digests) for file in files])
    for number, file in enumerate(files):
        run = stage.start()
        with stage.recorder.phase("load a kept file"):
            run.load(file.path)
            run.ready()
        stage.recorder.moment(f"kept {number}", run)
        stage.close(run)


def _integer_keys(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    for optimizer in _named(view):
        _number(optimizer, [name for g in optimizer["param_groups"] for name in g["params"]])
    return "optimizer state"


def _other_order(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """As if the parameters had once been registered the other way round."""
    for optimizer in _named(view):
        for group in optimizer["param_groups"]:
            group["params"] = list(reversed(group["params"]))
        _number(optimizer, [name for g in optimizer["param_groups"] for name in g["params"]])
    return "optimizer state"


def _named(view: CheckpointView) -> list[MutableMapping[str, Any]]:
    """The optimizers of the file, where their state is keyed by name."""
    named = [
        editable(optimizer)
        for optimizer in view.optimizers
        if optimizer["state"] and all(isinstance(key, str) for key in optimizer["state"])
    ]
    if not named:
        raise NothingToEdit("the file has no optimizer state that is keyed by name")
    return named


def _number(optimizer: MutableMapping[str, Any], names: list[str]) -> None:
    numbers = {name: number for number, name in enumerate(names)}
    optimizer["state"] = {
        numbers[name]: entries for name, entries in optimizer["state"].items() if name in numbers
    }
    for group in optimizer["param_groups"]:
        group["params"] = [numbers[name] for name in group["params"]]
        group.pop("param_names", None)


def _without_average(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    if not view.ema:
        raise NothingToEdit("no averages were recognised in the file")
    name = next(iter(view.ema))
    del editable(view.ema)[name]
    return name


def _extra_entry(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    name = "an_entry_of_another_version"
    editable(view.payload)[name] = {"number": 1, "text": "of no meaning here"}
    return name


def _dtensors(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """Replicated DTensors, which hold the whole value wherever they are unpickled."""
    if stage.order.spec is None or not torch.distributed.is_initialized():
        raise NothingToEdit("there is no mesh to make DTensors on")
    mesh = stage.rank.mesh(stage.order.spec)
    model = editable(view.model)
    for name in weights(view):
        model[name] = distribute_tensor(model[name], mesh, [Replicate()] * mesh.ndim)
    return "model"


EDITS: dict[str, Edit] = {
    "integer keys": _integer_keys,
    "integer keys in another order": _other_order,
    "a missing average": _without_average,
    "an extra entry": _extra_entry,
    "dtensors": _dtensors,
}
"""By name: how the earlier file differs from today's."""
