"""FSDP2 with a transfer load: weights that file and model share, if it is the same architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.named_state import plain
from torch import Tensor

from pytest_cplife import TrainingRun


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")

    def load_pretrained(self, run: TrainingRun, path: Path) -> None:
        assert isinstance(run, fsdp2.Fsdp2Run)
        saved = run.read_file(path)["model"]
        live = run.model.state_dict()
        shared = {name: value for name, value in saved.items() if name in live}
        self.check(saved, shared, live)
        # torch wants a state that is whole; what the file lacks is given back as it is.
        rest = {name: plain(value) for name, value in live.items() if name not in shared}
        run.restore_model({**self.fill(rest), **shared})

    def check(
        self, saved: Mapping[str, Any], shared: Mapping[str, Tensor], live: Mapping[str, Tensor]
    ) -> None:
        """Refuse weights of other sizes, and a file that shares less than half of the names."""
        resized = [name for name, value in shared.items() if value.shape != live[name].shape]
        if resized or 2 * len(shared) < len(live):
            raise ValueError(
                f"not this architecture: {len(shared)} of {len(live)} names are shared,"
                f" {resized} have another size"
            )

    def fill(self, rest: dict[str, Any]) -> dict[str, Any]:
        """What the model has in place of weights that are not in the file."""
        return rest
