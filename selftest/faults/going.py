"""Faults that show only when a resumed run goes on: GO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from pytest_cplife import RankContext, TrainingRun


@plant(fsdp2.Adapter, rule="GO-01", subject="train on (resumed)", mesh="fsdp=2")
class PlainMomentsFailLate(fsdp2.Fsdp2Run):
    """Plain moments are accepted by the load; the next step cannot use them."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        for parameter, entries in self.optimizers[0].state.items():
            if parameter is self.model.embed.weight:
                full = saved[0]["state"]["embed.weight"]
                entries |= {key: value.clone() for key, value in full.items()}


@plant(
    fsdp2.Adapter,
    rule="GO-02",
    subject="blocks.0.up.weight",
    mesh="fsdp=2",
    public=("B73",),
    likely="not data or noise",
)
class CarriesGradients(fsdp2.Fsdp2Run):
    """Part of each gradient is carried over to the next step, and the carry is not saved."""

    _carry: dict[str, Tensor] | None = None

    def reduce_gradients(self) -> None:
        carry = self._carry or {}
        self._carry = {}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self._carry[name] = parameter.grad * 0.1
                if name in carry:
                    parameter.grad += carry[name]


@plant(
    Reference,
    rule="GO-02",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B73",),
    likely="not data or noise",
)
class PrivateWarmUp(Trainer):
    """A factor counts the steps of this process and is no part of the file."""

    _steps = 0

    def _step(self) -> float:
        self._steps += 1
        for group in self.optimizer.param_groups:
            group["eps"] = 1e-8
        before = [p.detach().clone() for p in self.model.parameters()]
        loss = super()._step()
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), before, strict=True):
                parameter.lerp_(value, 0.1 / self._steps)
        return loss


@plant(fsdp2.Adapter, rule="GO-03", subject="gain[age]", mesh="fsdp=2", public=("B96",))
class AgeOfThisProcess(fsdp2.Fsdp2Run):
    """An entry of the state is computed from a count that starts at the load."""

    _age = 0

    def update(self) -> None:
        super().update()
        self._age += 1
        for entries in self.optimizers[0].state.values():
            entries["age"] = torch.tensor(float(self._age))


@plant(
    fsdp2.Adapter,
    rule="GO-04",
    subject="loss 1 after the load",
    mesh="fsdp=2",
    likely="only the reported losses differ",
)
class SmoothedLoss(fsdp2.Fsdp2Run):
    """The reported loss is an average whose past is not saved."""

    _smooth: float | None = None

    def mean_over_ranks(self, value: Tensor) -> float:
        loss = super().mean_over_ranks(value)
        self._smooth = loss if self._smooth is None else 0.9 * self._smooth + 0.1 * loss
        return self._smooth


@plant(fsdp2.Adapter, rule="GO-05", subject="epoch", mesh="fsdp=2", public=("B90",))
class EpochOfThisProcess(fsdp2.Fsdp2Run):
    """Completed epochs are counted from the steps since the load."""

    _steps = 0

    def step(self) -> float:
        epoch = self.epoch
        loss = super().step()
        self._steps += 1
        self.epoch = epoch + (self._steps % self.steps_per_epoch == 0)
        return loss


@plant(fsdp2.Adapter, rule="GO-06", subject="frequency", mesh="fsdp=2")
class StatisticsRestart(fsdp2.Fsdp2Run):
    """A running statistic weighs its past by a count that starts at the load."""

    _batches = 0

    def update(self) -> None:
        super().update()
        self._batches += 1
        self.model.frequency.mul_(1 + 1e-3 / self._batches)


@plant(fsdp2.Adapter, rule="GO-07", subject="all weights", mesh="fsdp=2")
class ScheduleRunsOut(fsdp2.Adapter):
    """The learning rate has come to zero before the save."""

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        run = super().start_distributed(ctx)
        run.schedulers = (LambdaLR(run.optimizers[0], lambda step: float(step < 3)),)
        return run


@plant(
    fsdp2.Adapter,
    rule="GO-08",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B143", "B96"),
)
class SavesWhatItLoaded(fsdp2.Fsdp2Run):
    """After a load the dictionary that is saved holds the loaded copies, not the live objects."""

    _loaded: dict[str, Any] | None = None

    def load(self, path: Path) -> None:
        super().load(path)
        self._loaded = torch.load(path, weights_only=True)["model"]

    def export_model(self) -> dict[str, Any]:
        return super().export_model() if self._loaded is None else self._loaded
