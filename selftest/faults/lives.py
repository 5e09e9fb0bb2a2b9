"""Trainers with one thing wrong that only some lifecycles show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2


class OnTwo(fsdp2.Adapter):
    """On one rank and on two, so that a plan may change from one to the other."""

    meshes = ("fsdp=1", "fsdp=2")


class OnOne(fsdp2.Adapter):
    meshes = ("fsdp=1",)


@plant(OnTwo, rule="FUZZ-03", subject="embed.weight[exp_avg]", mesh="")
class PairLosesMoments(fsdp2.Fsdp2Run):
    """The first moments are lost on the way from two ranks to one, and on no other."""

    def export_extra(self) -> dict[str, Any]:
        return {"saved on": str(self.ctx.spec)}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        if (payload["saved on"], str(self.ctx.spec)) == ("fsdp2", "fsdp1"):
            for entries in self.optimizers[0].state.values():
                entries["exp_avg"].zero_()


@plant(OnTwo, rule="FUZZ-03", subject="embed.weight", mesh="")
class OtherDataElsewhere(fsdp2.Fsdp2Run):
    """All that is loaded is right, and then one batch is left out where the mesh has changed."""

    moved = False

    def export_extra(self) -> dict[str, Any]:
        return {"saved on": str(self.ctx.spec)}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        self.moved = payload["saved on"] != str(self.ctx.spec)

    def data_step(self) -> int:
        return self.global_step + self.moved


@plant(OnOne, rule="FUZZ-04", subject="embed.weight", mesh="")
class StaleSecondSave(fsdp2.Fsdp2Run):
    """What was gathered for the first save is used for the second."""

    def export_model(self) -> dict[str, Any]:
        if not hasattr(self, "exported"):
            # Copies: on one rank what is gathered is what is trained.
            self.exported = {name: value.clone() for name, value in super().export_model().items()}
        return self.exported


@plant(OnOne, rule="FUZZ-04", subject="load", mesh="")
class CleansUpTooMuch(fsdp2.Fsdp2Run):
    """A save that fails takes all that lies beside it away."""

    def save(self, path: Path) -> None:
        try:
            super().save(path)
        except (OSError, RuntimeError):
            for other in path.parent.iterdir():
                other.unlink()
            raise


@plant(OnOne, rule="FUZZ-04", subject="load", mesh="")
class SwallowsErrors(fsdp2.Fsdp2Run):
    """A save that fails is taken for one that did not."""

    def save(self, path: Path) -> None:
        try:
            super().save(path)
        except (OSError, RuntimeError):
            path.touch()


@plant(OnOne, rule="FUZZ-04", subject="group 0 lr", mesh="")
class SavesHalfway(fsdp2.Fsdp2Run):
    """What is put aside while a file is written is put back only where that does not fail."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        rates = [group["lr"] for group in self.optimizers[0].param_groups]
        for group in self.optimizers[0].param_groups:
            group["lr"] = 0.0
        super().write(payload, path)
        for group, rate in zip(self.optimizers[0].param_groups, rates, strict=True):
            group["lr"] = rate
