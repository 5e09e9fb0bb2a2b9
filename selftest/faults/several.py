"""Faults of several checkpoints beside one another, and of those at the end of an epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2


@plant(fsdp2.Adapter, rule="LOAD-19", subject="global_step", mesh="fsdp=2", public=("B138",))
class CountersOfTheNewest(fsdp2.Fsdp2Run):
    """Tensors are those of the checkpoint that was asked for, counters those of the newest."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        super().write(payload, path)
        path.with_name("newest").write_text(json.dumps(self.counters()))

    def load(self, path: Path) -> None:
        newest = path.with_name("newest")
        self.newest = json.loads(newest.read_text()) if newest.exists() else {}
        super().load(path)

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(self.newest or payload)


class Loader(fsdp2.Fsdp2Run):
    """A run that tells where its loader stands in the epoch; right as it is."""

    cursor = 0

    def update(self) -> None:
        super().update()
        self.cursor = self.cursor % self.steps_per_epoch + 1

    def data_step(self) -> int:
        return self.global_step - self.global_step % self.steps_per_epoch + self.position()

    def position(self) -> int:
        return self.cursor % self.steps_per_epoch

    def named_extra_state(self) -> Mapping[str, object]:
        return {"cursor": self.cursor}

    def export_extra(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        # A serial run's file has none.
        self.cursor = payload.get("cursor", self.global_step % self.steps_per_epoch)


@plant(fsdp2.Adapter, rule="LOAD-19", subject="cursor", mesh="fsdp=2", public=("B89",))
class MovesOnAtTheEdge(Loader):
    """A loader at the end of its epoch is loaded as one at the beginning of the next."""

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        super().restore_extra(payload)
        self.cursor %= self.steps_per_epoch


@plant(fsdp2.Adapter, rule="DATA-03", subject="sample 32", mesh="fsdp=2", public=("B89",))
class LosesAnEpochAtTheEdge(fsdp2.Fsdp2Run):
    """A load at the end of an epoch makes an exhausted iterator, and takes the one after."""

    _lost = 0

    def data_step(self) -> int:
        return self.global_step + self._lost

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(payload)
        at_edge = self.global_step and not self.global_step % self.steps_per_epoch
        self._lost = self.steps_per_epoch if at_edge else 0
