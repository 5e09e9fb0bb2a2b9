"""Tensor parallelism for the blocks alone; every other parameter stays plain on all ranks.

Over ``dp`` the gradients are averaged by hand, on the local tensors.
"""

from __future__ import annotations

import torch.distributed as dist
from pytest_cplife.selftest.trainers.data import Part
from pytest_cplife.selftest.trainers.loop import LoopAdapter, LoopRun, moving_lr
from pytest_cplife.selftest.trainers.model import TinyNet
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from pytest_cplife import RankContext, TrainingRun


class TpRun(LoopRun):
    def reduce_gradients(self) -> None:
        if self.part.count == 1:
            return
        group = self.ctx.mesh.get_group("dp")
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                grad = parameter.grad
                local = grad.to_local() if isinstance(grad, DTensor) else grad
                dist.all_reduce(local, group=group)
                local /= self.part.count

    def restore_model(self, saved: dict[str, object]) -> None:
        live = self.model.state_dict()
        placed = {
            name: distribute_tensor(
                value, live[name].device_mesh, live[name].placements, src_data_rank=None
            )
            if isinstance(live[name], DTensor)
            else value
            for name, value in saved.items()
        }
        self.model.load_state_dict(placed, strict=True)


class Adapter(LoopAdapter):
    framework = "torch TP"
    meshes = ("tp=2", "dp=2,tp=2")
    plain_parameters = ("embed", "norm", "gain", "shift", "head")
    run_class: type[TpRun] = TpRun

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        if not dist.is_initialized():
            raise RuntimeError("TP needs an initialised process group")
        mesh = ctx.mesh
        model: TinyNet = self.build_serial_model().to(ctx.device)
        for block in model.blocks:
            plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
        part = Part()
        if "dp" in (mesh.mesh_dim_names or ()):
            part = Part(mesh.get_local_rank("dp"), mesh["dp"].size())
        optimizers = self.optimizers(model)
        schedulers = [moving_lr(each) for each in optimizers]
        return self.run_class(ctx, model, optimizers, schedulers, part)
