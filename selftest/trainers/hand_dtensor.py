"""Context parallelism by hand: sequences cut over ``cp``, parameters DTensors on the whole mesh.

The forward pass runs on local tensors through `functional_call`; what crosses ranks are the
parameters before it and the gradients after it. The blocks' first weights are sharded, all
others are replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytest_cplife.selftest.trainers.data import LENGTH, Batch, Part, fixed_inputs
from pytest_cplife.selftest.trainers.loop import LoopAdapter, LoopRun, moving_lr
from pytest_cplife.selftest.trainers.model import TinyNet
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.func import functional_call

from pytest_cplife import RankContext, TrainingRun


def distribute(model: TinyNet, mesh: DeviceMesh) -> TinyNet:
    """Every parameter becomes a DTensor on `mesh`; buffers stay plain."""
    for module in (model.embed, model, model.norm, *model.blocks.modules(), model.head):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                continue
            layout: list[Placement] = [Replicate()] * mesh.ndim
            if parameter.dim() == 2 and parameter.shape[0] > parameter.shape[1] > 6:
                layout[-1] = Shard(0)
            placed = distribute_tensor(parameter.detach(), mesh, layout, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(placed, parameter.requires_grad))
    model.head.weight = model.embed.weight
    return model


class HandRun(LoopRun):
    """The global loss is a sum over ranks, so gradients are partial sums and need no factor."""

    def __init__(
        self,
        ctx: RankContext,
        model: TinyNet,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any],
    ) -> None:
        mesh = ctx.mesh
        names = mesh.mesh_dim_names or ()
        parts = {
            name: Part(mesh.get_local_rank(name), mesh[name].size()) if name in names else Part()
            for name in ("dp", "cp")
        }
        self.sequence = parts["cp"]
        super().__init__(ctx, model, optimizers, schedulers, parts["dp"])

    def local_state(self) -> dict[str, Tensor]:
        """Full local parameters whose gradients are summed over the mesh, and the table's cut."""
        mesh = self.ctx.mesh
        state: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            assert isinstance(parameter, DTensor)
            if not all(placement.is_replicate() for placement in parameter.placements):
                parameter = parameter.redistribute(mesh, [Replicate()] * mesh.ndim)
            state[name] = parameter.to_local(grad_placements=[Partial()] * mesh.ndim)
        state["table"] = self.cut(self.model.table, dim=0)
        return state

    def cut(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's stretch of a sequence; a short one may leave the last ranks none."""
        stretch = -(-LENGTH // self.sequence.count)
        start = min(self.sequence.index * stretch, LENGTH)
        return tensor.narrow(dim, start, min(stretch, LENGTH - start))

    def forward_backward(self, local: Batch) -> Tensor:
        inputs, targets = self.cut(local.inputs, 1), self.cut(local.targets, 1)
        logits = functional_call(self.model, self.local_state(), (inputs,))
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        loss = total / (local.targets.numel() * self.part.count)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def reduce_gradients(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                assert isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor)
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)

    def mean_over_ranks(self, value: Tensor) -> float:
        dist.all_reduce(value)
        return value.item()

    @torch.no_grad()
    def predict(self) -> Tensor:
        training = self.model.training
        self.model.eval()
        state = {**self.local_state(), "table": self.model.table}
        output = functional_call(self.model, state, (fixed_inputs().to(self.ctx.device),))
        self.model.train(training)
        assert isinstance(output, Tensor)
        return output.cpu()

    def restore_model(self, saved: dict[str, Any]) -> None:
        live = self.model.state_dict()
        for name, value in saved.items():
            like = live.pop(name)
            if isinstance(like, DTensor):
                value = distribute_tensor(
                    value, like.device_mesh, like.placements, src_data_rank=None
                )
            like.copy_(value)
        if live:
            raise KeyError(f"the file lacks {sorted(live)}")


class Adapter(LoopAdapter):
    framework = "DTensor by hand"
    meshes = ("cp=1", "cp=2", "dp=2,cp=2", "cp=4")
    run_class: type[HandRun] = HandRun

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        if not dist.is_initialized():
            raise RuntimeError("a distributed run needs an initialised process group")
        model = distribute(self.build_serial_model().to(ctx.device), ctx.mesh)
        optimizers = self.optimizers(model)
        return self.run_class(ctx, model, optimizers, [moving_lr(each) for each in optimizers])
