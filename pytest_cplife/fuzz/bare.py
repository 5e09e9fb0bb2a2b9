"""torch's own ways to plain tensors and back, as an adapter that can be fuzzed like any other."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree as pytree

from pytest_cplife.adapter import LifecycleAdapter, RankContext, TrainingRun
from pytest_cplife.fuzz.trees import Box

# torch enters no dataclass that it has not been told of.
pytree.register_dataclass(Box)


class Bare(LifecycleAdapter):
    """`DTensor.full_tensor` and `distribute_tensor` over torch's pytrees, and nothing else."""

    meshes = ("dp=2", "dp=3", "dp=2,tp=2")

    def build_serial_model(self) -> nn.Module:
        return nn.Module()

    def start(self, ctx: RankContext) -> TrainingRun:
        raise NotImplementedError("there is no trainer")

    def to_plain(self, tree: Any) -> Any:
        return pytree.tree_map_only(DTensor, lambda t: t.full_tensor(), tree)

    def realign(self, tree: Any, template: Any) -> Any:
        return pytree.tree_map(_realign, tree, template)


def _realign(value: Any, template: Any) -> Any:
    if isinstance(template, DTensor) and isinstance(value, torch.Tensor):
        return distribute_tensor(value, template.device_mesh, template.placements)
    return value
