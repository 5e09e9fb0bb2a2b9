"""SGD, with momentum and without: an optimizer without state is complete when it has none."""

from __future__ import annotations

import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.model import TinyNet


class Adapter(fsdp2.Adapter):
    """No state at all."""

    meshes = ("fsdp=1", "fsdp=2")

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.01, foreach=False)]


class Momentum(Adapter):
    """One buffer per parameter and no ``step``; the first step has no dampening."""

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        momentum = {"momentum": 0.9, "dampening": 0.1, "foreach": False}
        return [torch.optim.SGD(model.parameters(), lr=0.05, **momentum)]
