"""Faults of the second generation: a sharded checkpoint of a run that was resumed from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import sharded


class KeepsWhatItRead(sharded.Sharded):
    """Base: holds on to what the last load has read beside the tensors."""

    _read: Mapping[str, Any] | None = None

    def put(self, tensors: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        super().put(tensors, rest)
        self._read = rest


@plant(
    sharded.Adapter,
    rule="DCP-25",
    subject="scheduler 0: last_epoch",
    mesh="fsdp=2",
    public=("B143",),
    likely="loaded copies",
)
class WritesWhatItRead(KeepsWhatItRead):
    """Saved tensors are the live ones; what is no tensor is what the load has put there."""

    def sharded_rest(self) -> dict[str, Any]:
        rest = super().sharded_rest()
        if self._read is not None:
            rest["schedulers"] = self._read["schedulers"]
        return rest


@plant(sharded.Adapter, rule="DCP-25", subject="global_step", mesh="fsdp=2")
class CountsSinceTheLoad(KeepsWhatItRead):
    """The steps of this process are saved as those of the run."""

    def sharded_rest(self) -> dict[str, Any]:
        rest = super().sharded_rest()
        if self._read is not None:
            rest["global_step"] -= self._read["global_step"]
        return rest
