"""DDP of a model with a complex parameter and one that has no dimensions."""

from __future__ import annotations

import torch
from pytest_cplife.selftest.trainers import ddp
from pytest_cplife.selftest.trainers.model import WIDTH, TinyNet, build_model
from torch import Tensor, nn


class ComplexNet(TinyNet):
    """Turns and stretches what the first block gets."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(1 + 0.1 * torch.randn(WIDTH, dtype=torch.complex64))
        self.temperature = nn.Parameter(torch.tensor(1.1))

    def embedded(self, inputs: Tensor) -> Tensor:
        hidden = super().embedded(inputs) * self.phase.abs() + self.phase.imag
        return hidden * self.temperature


class Adapter(ddp.Adapter):
    meshes = ("dp=1", "dp=2")

    def build_serial_model(self) -> TinyNet:
        return build_model(ComplexNet)
