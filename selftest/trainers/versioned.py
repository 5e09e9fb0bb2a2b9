"""A module that has a version of its own, and a file that notes it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from pytest_cplife.selftest.trainers.model import TinyNet, build_model
from torch import nn


class Norm(nn.LayerNorm):
    """Its first version kept ``gamma`` where there is ``weight`` now."""

    _version = 2

    def _load_from_state_dict(  # type: ignore[no-untyped-def]
        self, state_dict, prefix, local_metadata, *args, **options
    ) -> None:
        if local_metadata.get("version", 1) < 2 and f"{prefix}gamma" in state_dict:
            state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}gamma")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **options)


class Versioned(LoopRun):
    def export_model(self) -> dict[str, Any]:
        saved = OrderedDict(super().export_model())
        saved._metadata = self.model.state_dict()._metadata  # type: ignore[attr-defined]
        return saved


class Fsdp2Run(Versioned, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    run_class = Fsdp2Run
    serial_run = Versioned

    def build_serial_model(self) -> TinyNet:
        model = build_model()
        model.norm.__class__ = Norm
        return model
