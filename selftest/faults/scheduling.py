"""Faults of schedules: SCHED."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2


@plant(
    fsdp2.Adapter,
    rule="SCHED-01",
    subject="scheduler 0: last_epoch",
    mesh="fsdp=2",
    public=("B62",),
    likely="a fresh one",
)
class ScheduleLeftOut(fsdp2.Fsdp2Run):
    """The scheduler is no part of the file: warm-up begins again."""

    def load(self, path: Path) -> None:
        state = self.schedulers[0].state_dict()
        state = {key: copy.deepcopy(value) for key, value in state.items()}
        super().load(path)
        self.schedulers[0].load_state_dict(state)


@plant(
    Reference,
    rule="SCHED-01",
    subject="scheduler 0: last_epoch",
    mesh="cp=2",
    public=("B69",),
)
class AdvancedTwice(Trainer):
    """The loader advances the schedule, and its caller does so again."""

    def load(self, path: Path) -> None:
        super().load(path)
        for _ in range(self.global_step):
            self.scheduler.step()


@plant(
    fsdp2.Adapter,
    rule="SCHED-02",
    subject="optimizer 0 group 0: lr",
    mesh="fsdp=2",
    public=("B70",),
)
class OtherGroupObjects(fsdp2.Fsdp2Run):
    """After a load the scheduler writes to groups that the optimizer no longer has."""

    def load(self, path: Path) -> None:
        super().load(path)
        optimizer = self.optimizers[0]
        stranger = torch.optim.SGD(self.model.parameters(), lr=0.02)
        stranger.param_groups = [dict(group) for group in optimizer.param_groups]
        self.schedulers[0].optimizer = stranger


@plant(
    fsdp2.Adapter,
    rule="SCHED-02",
    subject="optimizer 0 group 0: lr",
    mesh="fsdp=2",
    public=("B67",),
)
class OffByOne(fsdp2.Fsdp2Run):
    """The first update after a load uses an lr that was already advanced."""

    _loaded = False

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        self._loaded = True

    def update(self) -> None:
        if self._loaded:
            self._loaded = False
            self.schedulers[0].step()
        super().update()
