"""Trainers with one thing wrong that only some lifecycles show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.trainers.fsdp2 import Adapter, Fsdp2Run


class PairRun(Fsdp2Run):
    def export_extra(self) -> dict[str, Any]:
        return {"saved on": str(self.ctx.spec)}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        if (payload["saved on"], str(self.ctx.spec)) == ("fsdp2", "fsdp1"):
            for entries in self.optimizers[0].state.values():
                entries["exp_avg"].zero_()


class PairLosesMoments(Adapter):
    """The first moments are lost on the way from two ranks to one, and on no other."""

    run_class = PairRun


class StaleRun(Fsdp2Run):
    def export_model(self) -> dict[str, Any]:
        if not hasattr(self, "exported"):
            self.exported = super().export_model()
        return self.exported


class StaleSecondSave(Adapter):
    """What was gathered for the first save is used for the second."""

    run_class = StaleRun


class OtherDataRun(Fsdp2Run):
    moved = False

    def export_extra(self) -> dict[str, Any]:
        return {"saved on": str(self.ctx.spec)}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        self.moved = payload["saved on"] != str(self.ctx.spec)

    def data_step(self) -> int:
        return self.global_step + self.moved


class OtherDataElsewhere(Adapter):
    """All that is loaded is right, and then one batch is left out where the mesh has changed."""

    run_class = OtherDataRun
