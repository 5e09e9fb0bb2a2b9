"""ZeRO-1 by hand: replicated bfloat16 parameters, and an optimizer over this rank's flat part.

The float32 masters and the moments of all trainable parameters lie in one flat tensor, of which
each rank keeps and updates an equal part. No optimizer holds a parameter of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.selftest.trainers.data import Part
from pytest_cplife.selftest.trainers.loop import LoopAdapter, LoopRun, moving_lr
from pytest_cplife.selftest.trainers.model import TinyNet, build_model
from pytest_cplife.selftest.trainers.named_state import check_sizes
from torch import Tensor, nn

from pytest_cplife import RankContext, TrainingRun

MOMENTS = ("exp_avg", "exp_avg_sq")


class FlatParts:
    """Where parameters lie in the flat tensor, and which part of it this rank has.

    Attributes:
        parameters: the trainable ones by name, in the order in which they lie.
        size: elements of each rank's part; the last one is padded.
    """

    def __init__(self, ctx: RankContext, model: nn.Module) -> None:
        self._ctx = ctx
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._numel = sum(p.numel() for p in self.parameters.values())
        self.size = -(-self._numel // ctx.world_size)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """All of `tensors` in float32 behind one another, padded. Shape (ranks * size,)."""
        device = self._ctx.device
        flat = torch.zeros(self.size * self._ctx.world_size, device=device)
        parts = [tensors[name].detach().float().flatten().to(device) for name in self.parameters]
        flat[: self._numel] = torch.cat(parts)
        return flat

    def own(self, flat: Tensor) -> Tensor:
        """A copy of this rank's part. Shape (size,)."""
        return flat[self._ctx.rank * self.size :][: self.size].clone()

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The inverse of `flatten`: views by name."""
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        pieces = flat[: self._numel].split(sizes)
        named = zip(self.parameters.items(), pieces, strict=True)
        return {name: piece.view_as(parameter) for (name, parameter), piece in named}

    def everywhere(self, part: Tensor) -> Tensor:
        """The flat tensor on every rank. Collective."""
        if self._ctx.serial:
            return part.clone()
        parts = [torch.empty_like(part) for _ in range(self._ctx.world_size)]
        dist.all_gather(parts, part)
        return torch.cat(parts)

    def on_first(self, part: Tensor) -> Tensor | None:
        """The flat tensor on rank 0, None on the others. Collective."""
        if self._ctx.serial:
            return part.clone()
        first = self._ctx.rank == 0
        parts = [torch.empty_like(part) for _ in range(self._ctx.world_size if first else 0)]
        dist.gather(part, parts if first else None, dst=0)
        return torch.cat(parts) if first else None


class Zero1Run(LoopRun):
    """A run whose only optimizer holds `master`, this rank's part of the masters."""

    def __init__(self, ctx: RankContext, model: TinyNet, part: Part) -> None:
        self.flat = FlatParts(ctx, model)
        self.master = nn.Parameter(self.flat.own(self.flat.flatten(self.flat.parameters)))
        self.optimizer = torch.optim.AdamW([self.master], lr=0.02, weight_decay=0.1, foreach=False)
        super().__init__(ctx, model, [self.optimizer], [moving_lr(self.optimizer)], part)

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def reduce_gradients(self) -> None:
        gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.flat.parameters.items()
        }
        flat = self.flat.flatten(gradients)
        if not self.ctx.serial:
            dist.all_reduce(flat)
        self.master.grad = self.flat.own(flat / self.ctx.world_size)

    def update(self) -> None:
        super().update()
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the parameters of every rank. Collective."""
        for name, value in self.flat.split(self.flat.everywhere(self.master.detach())).items():
            self.flat.parameters[name].copy_(value)

    # looking, saving and loading

    def parts(self) -> dict[str, Tensor]:
        """This rank's part of everything that is flat."""
        state = self.optimizer.state.get(self.master, {})
        return {"master": self.master.detach(), **{k: state[k] for k in MOMENTS if k in state}}

    def steps(self) -> dict[str, Tensor]:
        """The optimizer's own count, where it has one."""
        state = self.optimizer.state.get(self.master, {})
        return {"step": state["step"]} if "step" in state else {}

    def named_optimizer_state(self) -> Mapping[str, Mapping[str, Any]]:
        whole = {key: self.flat.everywhere(part) for key, part in self.parts().items()}
        return self.by_name(whole)

    def by_name(self, whole: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        tables = {key: self.flat.split(flat) for key, flat in whole.items()}
        return {
            name: {**{key: table[name] for key, table in tables.items()}, **self.steps()}
            for name in self.flat.parameters
        }

    def export_optimizers(self) -> list[Any]:
        gathered = {key: self.flat.on_first(part) for key, part in self.parts().items()}
        # Views would take the whole flat tensor into the file with each of them.
        whole = {key: flat for key, flat in gathered.items() if flat is not None}
        state = {
            name: {key: value.cpu().clone() for key, value in entries.items()}
            for name, entries in (self.by_name(whole) if whole else {}).items()
        }
        (group,) = self.optimizer.param_groups
        return [{"state": state, "param_groups": [{**group, "params": list(self.flat.parameters)}]}]

    def check_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        names = set(self.flat.parameters)
        ((state, groups),) = [(each["state"], each["param_groups"]) for each in saved]
        if len(groups) != 1 or set(groups[0]["params"]) != names or set(state) != names:
            raise ValueError(f"the file's optimizer has not the parameters {sorted(names)}")
        if len({frozenset(entries) for entries in state.values()}) > 1:
            raise ValueError("the parameters in the file have not all the same optimizer state")
        if len({float(entries["step"]) for entries in state.values() if "step" in entries}) > 1:
            raise ValueError("the parameters in the file have not all made the same steps")
        for name, entries in state.items():
            if "master" not in entries:
                raise ValueError(f"the file has no master of {name}")
            check_sizes(name, entries, self.flat.parameters[name])

    @torch.no_grad()
    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        state = saved[0]["state"]
        keys = next(iter(state.values())).keys()
        parts = {
            key: self.flat.own(self.flat.flatten({n: e[key] for n, e in state.items()}))
            for key in keys - {"step"}
        }
        self.master.copy_(parts.pop("master"))
        self.optimizer.state.clear()
        if "step" in keys:
            step = next(iter(state.values()))["step"].clone()
            self.optimizer.state[self.master] = {"step": step, **parts}
        (source,) = saved[0]["param_groups"]
        values = {key: value for key, value in source.items() if key != "params"}
        self.optimizer.param_groups[0].update(values)


class Adapter(LoopAdapter):
    framework = "ZeRO-1 by hand"
    meshes = ("dp=1", "dp=2", "dp=4")
    plain_parameters = ("",)
    run_class: type[Zero1Run] = Zero1Run

    def build_serial_model(self) -> TinyNet:
        return build_model().bfloat16()

    def start(self, ctx: RankContext) -> TrainingRun:
        torch.set_num_threads(1)
        if not ctx.serial and not dist.is_initialized():
            raise RuntimeError("ZeRO-1 needs an initialised process group")
        kind = Zero1Run if ctx.serial else self.run_class
        model = self.build_serial_model().to(ctx.device)
        return kind(ctx, model, Part(ctx.rank, ctx.world_size))
