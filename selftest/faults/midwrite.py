"""Faults of files that torch writes by their path: in C++, where no event tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.faults import crashing
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2


@plant(
    fsdp2.Adapter,
    rule="CRASH-09",
    subject="generation 2, rank 0 before finishing checkpoint",
    mesh="fsdp=2",
    likely="written in place",
)
class OneFileOverTheOther(crashing.InPlace):
    __doc__ = crashing.InPlace.__doc__


@plant(
    fsdp2.Adapter,
    rule="CRASH-10",
    subject="generation 1, rank 0 before finishing rest.pt",
    mesh="fsdp=2",
    public=("B135",),
)
class NoMarkOfItsEnd(crashing.Parts):
    """Nothing marks a folder as finished, and half of a file in it is taken for none."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        path.mkdir(exist_ok=True)
        model = {"model": payload["model"], **self.counters()}
        torch.save(model, path / "model.pt")
        rest = {name: value for name, value in payload.items() if name not in model}
        torch.save(rest, path / "rest.pt")
