"""Two schedules on one optimizer, one advanced by the step and one by the epoch.

A second param group holds nothing yet: it is for parameters that are thawed later.
"""

from __future__ import annotations

from typing import Any

import torch
from pytest_cplife.selftest.trainers import ddp
from pytest_cplife.selftest.trainers.loop import LoopRun
from pytest_cplife.selftest.trainers.model import TinyNet
from torch.optim.lr_scheduler import MultiplicativeLR, StepLR


class TwoSchedules(LoopRun):
    """Any run of this package with one optimizer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        (optimizer,) = self.optimizers
        by_step = MultiplicativeLR(optimizer, lambda _: 0.97)
        by_epoch = StepLR(optimizer, step_size=1, gamma=0.7)
        self.schedulers = (by_step, by_epoch)

    def update(self) -> None:
        self.optimizers[0].step()
        by_step, by_epoch = self.schedulers
        by_step.step()
        if (self.global_step + 1) % self.steps_per_epoch == 0:
            by_epoch.step()


class DdpRun(TwoSchedules, ddp.DdpRun):
    pass


class SerialRun(TwoSchedules, ddp.SerialRun):
    pass


class Adapter(ddp.Adapter):
    meshes = ("dp=1", "dp=2")
    run_class = DdpRun
    serial_run = SerialRun

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        # torch wants names in all groups or in none.
        later: dict[str, Any] = {"params": [], "param_names": [], "lr": 0.5}
        groups = [{"params": list(model.named_parameters())}, later]
        return [torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1, foreach=False)]
