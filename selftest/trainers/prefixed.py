"""Names in the file begin with where the program has its network, as in files of frameworks.

That is no wrapper's doing: the program writes the prefix, expects it, and `load_serial` says how
the serial model reads such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from torch import nn

PREFIX = "trainer.net."


def bare(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The model's state by the model's own names.

    Raises:
        ValueError: it is not by the program's.
    """
    strange = [name for name in saved if not name.startswith(PREFIX)]
    if strange:
        raise ValueError(f"names that do not begin with {PREFIX!r}: {strange}")
    return {name.removeprefix(PREFIX): value for name, value in saved.items()}


class Prefixed(LoopRun):
    """Any run of this package."""

    def export_model(self) -> dict[str, Any]:
        return {PREFIX + name: value for name, value in super().export_model().items()}

    def check_file(self, payload: Mapping[str, Any]) -> None:
        super().check_file({**payload, "model": bare(payload["model"])})

    def restore_model(self, saved: dict[str, Any]) -> None:
        super().restore_model(bare(saved))


class Fsdp2Run(Prefixed, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    run_class = Fsdp2Run
    serial_run = Prefixed

    def load_serial(self, path: Path) -> nn.Module:
        module = self.build_serial_model()
        payload = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(bare(payload["model"]))
        return module
