"""Faults of averaged weights on FSDP2: shards, buffers, the beginning, and the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.ema import Ema
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import averaged
from pytest_cplife.selftest.trainers.averaged import local
from pytest_cplife.selftest.trainers.named_state import place_like, plain
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_cplife import EmaSpec


@plant(
    averaged.Adapter,
    rule="EMA-01",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B109",),
    likely="two updates are made for each step",
)
class TwiceAStep(averaged.Fsdp2Run):
    """The average is updated once by the loop and once by a callback."""

    def update(self) -> None:
        super().update()
        if self.global_step + 1 >= self.spec.start_step:
            self.update_average()


@plant(
    averaged.Adapter,
    rule="EMA-04",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B102",),
    likely="that averaging had begun",
)
class BeginsAgain(averaged.Fsdp2Run):
    """That the average has begun is not in the file: the next update takes the raw weights."""

    spec = EmaSpec(0.8, init="first_update", start_step=2)

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        super().restore_extra(payload)
        self.updates = 0


@plant(
    averaged.Later,
    rule="EMA-04",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B100",),
    likely="counted from the load",
)
class StartCountsFromTheLoad(averaged.LaterRun):
    """The step from which to average is counted in this process."""

    _loaded_at = 0

    def load(self, path: Path) -> None:
        super().load(path)
        self._loaded_at = self.global_step

    def update_average(self) -> None:
        if self.global_step + 1 - self._loaded_at >= self.spec.start_step:
            super().update_average()


@plant(
    averaged.Adapter,
    rule="EMA-11",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B104",),
    likely="are the live weights",
)
class ExchangesTheSlots(averaged.Fsdp2Run):
    """A save in an evaluation puts the live weights back and writes them as the average, too."""

    _inside = False

    def save(self, path: Path) -> None:
        self._inside = self.backup is not None
        super().save(path)
        self._inside = False

    def export_shadow(self) -> dict[str, Tensor]:
        if self._inside:
            return {name: plain(value) for name, value in self.averaged()}
        return super().export_shadow()


@plant(
    averaged.Adapter,
    rule="EMA-12",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B99",),
    likely="rank 0's shard of the average",
)
class OneShardOfTheShadow(averaged.Fsdp2Run):
    """The rank that writes saves its own part of the average."""

    def export_shadow(self) -> dict[str, Tensor]:
        return {name: local(value).clone() for name, value in self.shadow.items()}


@plant(
    Reference,
    rule="EMA-12",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B146",),
    likely="rounded to bfloat16",
)
class RoundedShadow(Ema):
    """The average takes a way through half precision to the file."""

    def state(self) -> dict[str, Any]:
        state = super().state()
        rounded = {name: value.bfloat16().float() for name, value in state["shadow"].items()}
        return {**state, "shadow": rounded}


@plant(Reference, rule="EMA-12", subject="scale", mesh="cp=2", public=("B61",))
class LeavesOneOutOfTheFile(Ema):
    """One average is not written."""

    def state(self) -> dict[str, Any]:
        state = super().state()
        return {**state, "shadow": {k: v for k, v in state["shadow"].items() if k != "scale"}}


@plant(averaged.Adapter, rule="EMA-13", subject="seen", mesh="fsdp=2")
class StaleIntegers(averaged.Fsdp2Run):
    """Integers have no mean and are passed over."""

    def update_average(self) -> None:
        before = self.shadow["seen"].clone()
        super().update_average()
        self.shadow["seen"].copy_(before)


@plant(averaged.Adapter, rule="EMA-13", subject="frequency", mesh="fsdp=2")
class CopiedStatistics(averaged.Fsdp2Run):
    """Statistics are copied under averaged weights, where they are declared to be averaged."""

    @torch.no_grad()
    def update_average(self) -> None:
        super().update_average()
        self.shadow["frequency"].copy_(self.model.frequency)


@plant(averaged.Adapter, rule="EMA-13", subject="frequency", mesh="fsdp=2")
class NoAveragedStatistics(averaged.Fsdp2Run):
    """The average is one of parameters only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ema = {k: v for k, v in self.shadow.items() if k not in ("frequency", "seen")}


@plant(averaged.Adapter, rule="EMA-03", subject="embed.weight", mesh="fsdp=2", public=("B112",))
class KeepsAveragesWhole(averaged.Fsdp2Run):
    """A loaded average stays whole on every rank until the next update has use for its shard."""

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        super().restore_extra(payload)
        self.shadow["embed.weight"] = plain(self.shadow["embed.weight"])

    def update_average(self) -> None:
        whole = self.shadow["embed.weight"]
        if not isinstance(whole, DTensor):
            self.shadow["embed.weight"] = place_like(whole, self.model.embed.weight)
        super().update_average()
