"""A file of one rank's shards, and a process without a group that is given it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from pytest_cplife.evidence.observe import view_tensor
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import NothingToEdit, editable, weights
from pytest_cplife.scenarios.order import Order, Stage, set_stage


def ungathered(rank: Rank, order: Order) -> None:
    """Make the file that a save on two ranks leaves where nothing is gathered; load it serially."""
    stage = set_stage(rank, order)
    assert order.source is not None
    path = order.output
    with stage.recorder.phase("edit"):
        try:
            view = stage.adapter.read_checkpoint(order.source)
            model = editable(view.model)
            for name in weights(view):
                model[name] = first_of_two(model[name])
            stage.adapter.write_checkpoint(view, path)
        except NothingToEdit as reason:
            stage.recorder.absent(str(reason), "refusal")
            return
    _load(stage)


def _load(stage: Stage) -> None:
    module = None
    with stage.recorder.phase("load serial"):
        try:
            module = stage.adapter.load_serial(stage.order.output)
        except Exception as error:
            refusal = f"{type(error).__name__}: {error}"
    if module is None:
        stage.recorder.fact("refusal", refusal)
        return
    store = stage.recorder.store
    loaded: dict[str, Any] = {n: view_tensor(v, store) for n, v in module.named_parameters()}
    stage.recorder.fact("loaded", loaded)
    stage.recorder.fact("refusal", "")


def first_of_two(tensor: Tensor) -> DTensor:
    """What rank 0 of two has of `tensor`, cut along its first dimension. No group is needed."""
    mesh = DeviceMesh("cpu", torch.arange(2), _init_backend=False, _rank=0)
    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    part = tensor[: -(-tensor.shape[0] // 2)].clone()
    spec = DTensorSpec(mesh, (Shard(0),), meta)
    return DTensor(part, spec, requires_grad=False)  # type: ignore[no-untyped-call]
