"""Faults of optimizers that hold flattened parameters of their own (ZeRO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import epoch_end, zero1


@plant(zero1.Adapter, rule="OPT-02", subject="blocks.0.up.weight[master]", mesh="dp=2")
class MastersFromWeights(zero1.Zero1Run):
    """The masters are made of the rounded weights again, and not restored."""

    @torch.no_grad()
    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(saved)
        self.master.copy_(self.flat.own(self.flat.flatten(self.flat.parameters)))


@plant(zero1.Adapter, rule="OPT-02", subject="blocks.0.down.bias[exp_avg]", mesh="dp=2")
class FirstPartOfMoments(zero1.Zero1Run):
    """Every rank restores the first rank's part of the moments."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        for key, part in self.optimizer.state.get(self.master, {}).items():
            if key in zero1.MOMENTS:
                part.copy_(self.flat.everywhere(part)[: self.flat.size])


@plant(epoch_end.Adapter, rule="GO-10", subject="blocks.0.up.weight", mesh="fsdp=2")
class NothingBeforeAnEpoch(epoch_end.Fsdp2Run):
    """A checkpoint from before the first epoch is taken for one from after it."""

    _from_start = False

    def data_step(self) -> int:
        return self.global_step + (self.steps_per_epoch if self._from_start else 0)

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(payload)
        self._from_start = self.epoch == 0


@plant(epoch_end.Adapter, rule="GO-09", subject="blocks.0.up.weight[exp_avg]", mesh="fsdp=2")
class SavesMomentsOnce(epoch_end.Fsdp2Run):
    """A run that has not stepped since its load saves no moments but zeroes."""

    _stepped = False

    def update(self) -> None:
        self._stepped = True
        super().update()

    def export_optimizers(self) -> list[Any]:
        saved = super().export_optimizers()
        if not self._stepped:
            for entries in saved[0].get("state", {}).values():
                entries["exp_avg"] = torch.zeros_like(entries["exp_avg"])
        return saved


@plant(zero1.Adapter, rule="GRAD-08", subject="embed.weight[exp_avg]", mesh="dp=2")
class StepsOnItsOwnGradient(zero1.Zero1Run):
    """No rank's gradient is added to another's: each part is stepped with one rank's own."""

    def reduce_gradients(self) -> None:
        own = {name: parameter.grad for name, parameter in self.flat.parameters.items()}
        given = {name: grad for name, grad in own.items() if grad is not None}
        zeros = {n: torch.zeros_like(p) for n, p in self.flat.parameters.items() if n not in given}
        self.master.grad = self.flat.own(self.flat.flatten(given | zeros))
