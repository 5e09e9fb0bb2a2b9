"""Earlier formats, derived from the trainer's own fresh checkpoint."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import Edit, NothingToEdit, editable, offer_edits, weights
from pytest_cplife.scenarios.optimizer_edits import LEGACY
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


def _turned(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """Every matrix is the transpose of a transposed one: the same values in another order."""
    for optimizer in view.optimizers:
        for entries in optimizer["state"].values():
            _turn(editable(entries))
    if view.ema:
        _turn(editable(view.ema))
    turned = _turn(editable(view.model))
    if not turned:
        raise NothingToEdit("the model has no matrix")
    return turned[0]


def _turn(mapping: MutableMapping[str, Any]) -> list[str]:
    names = [k for k, v in mapping.items() if torch.is_tensor(v) and v.ndim > 1]
    names = [name for name in names if min(mapping[name].shape[:2]) > 1]
    # Two names of a tied tensor stay one.
    turned = {
        id(mapping[name]): mapping[name].transpose(0, 1).contiguous().transpose(0, 1)
        for name in names
    }
    mapping.update({name: turned[id(mapping[name])] for name in names})
    return names


def _widened(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """Every weight in a wider type, which holds the very same values."""
    names = [name for name in weights(view) if view.model[name].dtype in _WIDER]
    if not names:
        raise NothingToEdit("the model has no weight of a type that a wider one holds")
    model = editable(view.model)
    for name in names:
        model[name] = model[name].to(_WIDER[model[name].dtype])
    return names[0]


def _dtensors(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """Replicated DTensors, which hold the whole value wherever they are unpickled."""
    mesh = _mesh(stage)
    model = editable(view.model)
    for name in weights(view):
        model[name] = distribute_tensor(model[name], mesh, [Replicate()] * mesh.ndim)
    return "model"


def _shards(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """Sharded DTensors, of which the file holds the part of the rank that wrote it."""
    mesh = _mesh(stage)
    if mesh.size() == 1:
        raise NothingToEdit("on one rank a shard is the whole")
    longest = max(range(mesh.ndim), key=mesh.size)
    model = editable(view.model)
    for name in weights(view):
        layout = [Shard(0) if dim == longest else Replicate() for dim in range(mesh.ndim)]
        model[name] = distribute_tensor(model[name], mesh, layout)
    return "model"


def _mesh(stage: Stage) -> DeviceMesh:
    if stage.order.spec is None or not torch.distributed.is_initialized():
        raise NothingToEdit("there is no mesh to make DTensors on")
    return stage.rank.mesh(stage.order.spec)


_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
}

EDITS: dict[str, Edit] = {
    **LEGACY,
    "a missing average": _without_average,
    "an extra entry": _extra_entry,
    "another memory order": _turned,
    "another dtype": _widened,
    "dtensors": _dtensors,
    "sharded dtensors": _shards,
}
"""By name: how the earlier file differs from today's. The last may well end a rank."""
