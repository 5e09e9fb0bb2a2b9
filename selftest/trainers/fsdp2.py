"""torch FSDP2 with AdamW and ``torch.distributed.checkpoint.state_dict``, with and without TP.

Two adapters. `Adapter` is right everywhere. `Naive` asks torch for the optimizer's state at every
save, also before the first step, where torch makes that state by a hidden ``step()`` and so
changes the training that follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from pytest_cplife.selftest.trainers.architecture import check_named
from pytest_cplife.selftest.trainers.data import Part
from pytest_cplife.selftest.trainers.loop import LoopAdapter, LoopRun, moving_lr
from pytest_cplife.selftest.trainers.model import TinyNet
from pytest_cplife.selftest.trainers.named_state import export_optimizer, restore_optimizer
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from pytest_cplife import MeshSpec, RankContext, TrainingRun

GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
# Rank 0's tensors are cut by offset; without the broadcast torch cannot cut tensors that TP and
# FSDP share and that do not divide.
SCATTER = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def shard(model: TinyNet, mesh: DeviceMesh) -> TinyNet:
    """Tensor parallelism over ``tp`` where the mesh has it, then FSDP2 over the rest."""
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        for block in model.blocks:
            # The uneven activation must stay a DTensor: a bare local one forgets its full size.
            plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
    data = mesh[data_dims(mesh)]
    for block in model.blocks:
        fully_shard(block, mesh=data)
    return fully_shard(model, mesh=data)


def data_dims(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(name for name in mesh.mesh_dim_names or () if name != "tp")


def data_part(mesh: DeviceMesh) -> Part:
    """The rank's share of each batch: ranks that differ only in ``tp`` have the same."""
    part = Part()
    for name in data_dims(mesh):
        size = mesh[name].size()
        part = Part(part.index * size + mesh.get_local_rank(name), part.count * size)
    return part


def contiguous(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested mappings in which every tensor lies in the order of its dimensions."""
    return {
        key: contiguous(value)
        if isinstance(value, Mapping)
        else value.contiguous()
        if isinstance(value, Tensor)
        else value
        for key, value in tree.items()
    }


class Fsdp2Run(LoopRun):
    """A run whose state goes through torch's distributed state dicts."""

    def predict(self) -> Tensor:
        output = super().predict()
        # FSDP2 leaves the root gathered after a forward pass that no backward pass follows.
        if isinstance(self.model, FSDPModule):
            self.model.reshard()
        return output

    def export_model(self) -> dict[str, Any]:
        return get_model_state_dict(self.model, options=GATHER)

    def restore_model(self, saved: dict[str, Any]) -> None:
        # torch rewrites the dict that it is given, so it gets one of its own. It sends memory, not
        # values: what is transposed on rank 0 would arrive scrambled.
        set_model_state_dict(self.model, contiguous(saved), options=SCATTER)

    def export_optimizers(self) -> list[Any]:
        return [
            get_optimizer_state_dict(self.model, optimizer, options=GATHER)
            if optimizer.state
            else export_optimizer(self.model, optimizer)
            for optimizer in self.optimizers
        ]

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        check_named(saved)
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
            held = {name for group in state["param_groups"] for name in group["params"]}
            if state["state"] and trained & held <= state["state"].keys():
                set_optimizer_state_dict(self.model, optimizer, contiguous(state), options=SCATTER)
            else:
                # Before the first step, or for a new weight, there is no state, so none may be left
                # or made; torch makes all of it before it refuses a file in which some is missing.
                restore_optimizer(self.model, optimizer, state)


class NaiveRun(Fsdp2Run):
    def export_optimizers(self) -> list[Any]:
        return [
            get_optimizer_state_dict(self.model, optimizer, options=GATHER)
            for optimizer in self.optimizers
        ]


class Adapter(LoopAdapter):
    """Right at every save point."""

    framework = "torch FSDP2"
    meshes = ("fsdp=1", "fsdp=2", "fsdp=4", "dp=2,fsdp=2", "fsdp=2,tp=2")
    run_class: type[Fsdp2Run] = Fsdp2Run

    def placement_plan(self, spec: MeshSpec) -> Mapping[str, Mapping[str, str]]:
        # Shards over the last dimension that carries data, replicas over those before it.
        *replicas, shards = [name for name in spec.names if name != "tp"]
        data = {**dict.fromkeys(replicas, "R"), shards: "S(0)"}
        plan = {"": data}
        for block in ("blocks.0", "blocks.1") if "tp" in spec.names else ():
            # What both cut along one dimension lies as if tp had come first.
            plan[f"{block}.up"] = {**data, shards: "S(0,sf=2)", "tp": "S(0)"}
            plan[f"{block}.down.weight"] = {**data, "tp": "S(1)"}
            plan[f"{block}.down.bias"] = {**data, "tp": "R"}
        return plan

    def wrap(self, module: nn.Module, ctx: RankContext) -> TinyNet:
        assert isinstance(module, TinyNet)
        return shard(module.to(ctx.device), ctx.mesh)

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        if not dist.is_initialized():
            raise RuntimeError("FSDP2 needs an initialised process group")
        model = self.wrap(self.build_serial_model(), ctx)
        optimizers = self.optimizers(model)
        schedulers = [moving_lr(each) for each in optimizers]
        return self.run_class(ctx, model, optimizers, schedulers, data_part(ctx.mesh))


class Naive(Adapter):
    """Wrong where it is saved before the first step, and only there."""

    run_class = NaiveRun
