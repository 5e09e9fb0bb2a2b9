"""An optimizer for each parameter, stepped inside the backward pass when its gradient is there.

No gradient outlives its step, which is what such trainers are for.
"""

from __future__ import annotations

from typing import Any

import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from pytest_cplife.selftest.trainers.model import TinyNet
from torch import Tensor


class InBackward(LoopRun):
    """Any run of this package whose optimizers hold one parameter each."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.optimizer_of = {
            optimizer.param_groups[0]["params"][0]: optimizer for optimizer in self.optimizers
        }
        for parameter in self.optimizer_of:
            parameter.register_post_accumulate_grad_hook(self.step_one)

    @torch.no_grad()
    def step_one(self, parameter: Tensor) -> None:
        optimizer = self.optimizer_of[parameter]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def update(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()


class Fsdp2Run(InBackward, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    run_class = Fsdp2Run
    serial_run = InBackward

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.AdamW([parameter], lr=0.02, weight_decay=0.1, foreach=False)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]
