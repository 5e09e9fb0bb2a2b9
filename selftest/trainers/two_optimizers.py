"""Two optimizers of two kinds, each with a schedule, and two groups in the first."""

from __future__ import annotations

import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.model import TinyNet


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=2", "fsdp=2,tp=2")

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        decayed = [block.up.weight for block in model.blocks]
        plain = [block.down.weight for block in model.blocks]
        chosen = {id(parameter) for parameter in (*decayed, *plain)}
        rest = [each for each in model.parameters() if id(each) not in chosen]
        groups = [{"params": decayed, "weight_decay": 0.2}, {"params": plain, "lr": 0.03}]
        return [
            torch.optim.AdamW(groups, lr=0.01, foreach=False),
            torch.optim.SGD(rest, lr=0.05, momentum=0.8, foreach=False),
        ]
