"""Parameters in bfloat16 under FSDP2, with float32 masters in the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from pytest_cplife.selftest.trainers.model import TinyNet, build_model
from torch import Tensor, nn


class MasterAdam(torch.optim.Optimizer):
    """Adam on a float32 copy of each parameter, which is rounded back after each step."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad.float(), group)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["master"] = parameter.detach().float()
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        state["step"] += 1
        step = int(state["step"].item())
        first, second = group["betas"]
        state["exp_avg"].mul_(first).add_(grad, alpha=1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(grad, grad, value=1 - second)
        size = group["lr"] * (1 - second**step) ** 0.5 / (1 - first**step)
        scale = state["exp_avg_sq"].sqrt().add_(group["eps"])
        state["master"].addcdiv_(state["exp_avg"], scale, value=-size)
        parameter.copy_(state["master"])


class Fsdp2Run(fsdp2.Fsdp2Run):
    """torch's setters cast optimizer state to the parameter's dtype, so names do it here."""

    def export_optimizers(self) -> list[Any]:
        return LoopRun.export_optimizers(self)

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        LoopRun.restore_optimizers(self, saved)


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=2", "dp=2,fsdp=2")
    run_class = Fsdp2Run

    def build_serial_model(self) -> TinyNet:
        return build_model().bfloat16()

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        return [MasterAdam(model.parameters())]
