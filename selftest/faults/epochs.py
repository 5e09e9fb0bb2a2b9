"""Faults of stops in the middle of epochs and at their edge, in the first one and a later one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.data import Data
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from torch import Tensor


@plant(fsdp2.Adapter, rule="DATA-03", subject="sample 0", mesh="fsdp=2", public=("B87",))
class ForgetsLaterEpochs(fsdp2.Fsdp2Run):
    """A resume finds its place within the first epoch, and in later ones takes that for it."""

    _offset = 0

    def data_step(self) -> int:
        return self.global_step - self._offset

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(payload)
        self._offset = self.epoch * self.steps_per_epoch


@plant(Reference, rule="DATA-03", subject="sample 0", mesh="cp=2", public=("B85",))
class NewPermutation(Trainer):
    """The position in the epoch comes back, and its order is drawn anew."""

    def load(self, path: Path) -> None:
        super().load(path)
        data = Data(self.model_config.vocabulary, self.model_config.length, self.config.seed)
        data.seed += 1
        self.data = data


@plant(
    fsdp2.Adapter,
    rule="SCHED-03",
    subject="optimizer 0 group 0: lr",
    mesh="fsdp=2",
    public=("B67",),
)
class MilestoneFromTheLoad(fsdp2.Fsdp2Run):
    """The lr is halved at a milestone that counts the steps of this process."""

    _made = 0

    def update(self) -> None:
        super().update()
        self._made += 1
        if self._made >= 7:
            self.optimizers[0].param_groups[0]["lr"] *= 0.5


@plant(fsdp2.Adapter, rule="GO-16", subject="gain", mesh="fsdp=2", public=("B95",))
class AnchorsEachEpoch(fsdp2.Fsdp2Run):
    """From the second epoch on weights are held to those of its first step, which no file has."""

    _anchor: Mapping[str, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        super().update()
        named = dict(self.model.named_parameters())
        if self.epoch and (not self._anchor or not self.global_step % self.steps_per_epoch):
            self._anchor = {name: value.detach().clone() for name, value in named.items()}
        for name, value in self._anchor.items():
            named[name].lerp_(value, 0.1)
