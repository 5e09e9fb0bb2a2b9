"""Faults of a trainer whose restarts differ by rounding anyway: rounding must not excuse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import ddp


class FirstStep(ddp.DdpRun):
    """Base: knows which update is the first after a load, where no snapshot looks any more."""

    _loaded = False

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        self._loaded = True

    def update(self) -> None:
        first, self._loaded = self._loaded, False
        if first:
            self.first_update()
        else:
            super().update()

    def first_update(self) -> None:
        super().update()


@plant(ddp.Rebucketing, rule="GO-02", subject="embed.weight", mesh="dp=4")
class ForgetsMomentsLate(FirstStep):
    """What a load has put back is dropped when the first step begins."""

    @torch.no_grad()
    def first_update(self) -> None:
        for entries in self.optimizers[0].state.values():
            entries["exp_avg"].zero_()
        super().first_update()


@plant(ddp.Rebucketing, rule="GO-02", subject="embed.weight", mesh="dp=4")
class RateOffByAThousandth(FirstStep):
    """The first step after a load is made with another lr, by a thousandth of it."""

    def first_update(self) -> None:
        group = self.optimizers[0].param_groups[0]
        group["lr"] *= 1.001
        super().first_update()


@plant(ddp.Rebucketing, rule="GO-03", subject="embed.weight[exp_avg_sq]", mesh="dp=4")
class SquaresOffByAThousandth(FirstStep):
    """Second moments are kept in less precision than they are used in."""

    @torch.no_grad()
    def first_update(self) -> None:
        for entries in self.optimizers[0].state.values():
            entries["exp_avg_sq"].mul_(1.001)
        super().first_update()


@plant(ddp.Rebucketing, rule="GO-02", subject="blocks.0.down.weight", mesh="dp=4")
class UndeclaredRestart(ddp.Rebucketing):
    """Restarts add up in another order, and the adapter does not say so."""

    bitwise_resume = True
