"""Names that are nearly known, and those that only look it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_cplife import LifecycleAdapter, TrainingRun
from pytest_cplife.lookalikes import lookalikes, one_slip, swapped


class Run(TrainingRun):
    """A run whose own names are no misspelled ones."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.optimizers = [self.optimizer]
        self.global_step = 0
        self.epochs = 3
        self.loads = 0

    def train(self, num_steps: int) -> list[float]:
        return []

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...

    def read(self) -> None: ...

    def load_checkpoint(self) -> None: ...

    @property
    def costly(self) -> None:
        raise AssertionError("it was evaluated")


def test_names_of_ones_own() -> None:
    assert lookalikes(Run()) == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("saev", "save"),
        ("smaple_ids", "sample_ids"),
        ("save_shraded", "save_sharded"),
        ("scheduler", "schedulers"),
        ("control_scalar", "control_scalars"),
        ("named_parametrs", "named_parameters"),
    ],
)
def test_slips_of_a_run(name: str, meant: str) -> None:
    run = Run()
    setattr(run, name, None)
    assert lookalikes(run) == (f"Run.{name}: {meant}",)


def test_slips_of_an_adapter() -> None:
    cls = type("Mine", (LifecycleAdapter,), {"plain_parameter": (), "load_checkpoint": None})
    assert lookalikes(cls) == ("Mine.plain_parameter: plain_parameters",)


def test_slips() -> None:
    for name in ("sve", "saave", "sace", "saev"):
        assert one_slip(name, "save")
    for name in ("save", "svea", "saves_", "wavy"):
        assert not one_slip(name, "save")
    assert swapped("saev", "save")
    assert not swapped("sace", "save")
