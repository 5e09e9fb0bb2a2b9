"""Faults with files of earlier formats: COMPAT."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.named_state import place_like
from torch.distributed.tensor import DTensor

from pytest_cplife import LegacyCheckpoint

KEPT = Path(__file__).parent / "kept"


class Numbers(fsdp2.Fsdp2Run):
    """Base: optimizer state by number is taken."""

    def check_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        pass


@plant(fsdp2.Adapter, rule="COMPAT-01", subject="embed.weight[exp_avg]", mesh="fsdp=2")
class NumbersAreSkipped(Numbers):
    """Keys are looked up by name only, and what is not found counts as new."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        if all(isinstance(name, str) for name in saved[0]["state"]):
            super().restore_optimizers(saved)


@plant(
    fsdp2.Adapter,
    rule="COMPAT-02",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B20",),
)
class NumbersByPosition(Numbers):
    """State by number is mapped by position and no shape is looked at."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        if all(isinstance(name, str) for name in saved[0]["state"]):
            super().restore_optimizers(saved)
            return
        (optimizer,) = self.optimizers
        for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
            entries = saved[0]["state"].get(number)
            if entries is not None:
                optimizer.state[parameter] = {
                    key: place_like(value.clone(), parameter) for key, value in entries.items()
                }


@plant(Reference, rule="COMPAT-03", subject="a missing average", mesh="cp=2")
class StrictAverages(Trainer):
    """A file in which an average is missing is refused as a whole."""

    def load(self, path: Path) -> None:
        shadow = torch.load(path, weights_only=False)["ema"]["shadow"]
        if shadow.keys() != self.ema.shadow.keys():
            raise KeyError("averages are missing")
        super().load(path)


@plant(fsdp2.Adapter, rule="COMPAT-04", subject="an extra entry", mesh="fsdp=2")
class ExactEntries(fsdp2.Fsdp2Run):
    """The entries of the file are compared with an exact list."""

    def check_file(self, payload: Mapping[str, Any]) -> None:
        super().check_file(payload)
        if set(payload) != {"model", "optimizers", "schedulers", "global_step", "epoch"}:
            raise ValueError(f"unknown entries in {sorted(payload)}")


@plant(Reference, rule="COMPAT-05", subject="scale", mesh="cp=2")
class HalvesDTensors(Trainer):
    """A DTensor in a file is taken for one rank's term of a sum."""

    def load(self, path: Path) -> None:
        payload = torch.load(path, weights_only=False)
        super().load(path)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if isinstance(payload["model"][name], DTensor):
                    parameter.mul_(0.5)


@plant(fsdp2.Adapter, rule="COMPAT-06", subject="load a kept file (kept)", mesh="fsdp=2")
class DroppedFormat(fsdp2.Adapter):
    """A file that is kept has a format that nobody can read any more."""

    def legacy_checkpoints(self) -> Iterable[LegacyCheckpoint]:
        return [LegacyCheckpoint(KEPT / "of-another-time.pt", "version 0", 3)]
