"""A small training run of one process, as evidence is taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from pytest_cplife import TrainingRun


class Net(nn.Module):
    """Two tied weights, a frozen one, running statistics, and buffers that are not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(3.0), persistent=False)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.embed(ids)) + self.table)
        return out


class ToyRun(TrainingRun):
    """AdamW with two groups and a schedule."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.model = Net()
        torch.random.set_rng_state(generator)
        model = self.model
        groups = [
            {"params": [model.embed.weight], "weight_decay": 0.1, "tag": "decayed"},
            {"params": list(model.norm.parameters()), "betas": (0.8, 0.95)},
        ]
        self.optimizers = [torch.optim.AdamW(groups, lr=0.1)]
        self.schedulers = [torch.optim.lr_scheduler.StepLR(self.optimizers[0], 1, 0.5)]
        self.global_step = 0

    def train(self, num_steps: int) -> list[float]:
        losses = []
        for _ in range(num_steps):
            loss = self.model(torch.tensor([0, 1, 2, 3])).pow(2).mean()
            self.optimizers[0].zero_grad()
            loss.backward()
            self.optimizers[0].step()
            self.schedulers[0].step()
            self.global_step += 1
            losses.append(float(loss.detach()))
        return losses

    def save(self, path: Path) -> None:
        torch.save({"model": self.model.state_dict()}, path)

    def load(self, path: Path) -> None:
        self.model.load_state_dict(torch.load(path)["model"])


class Chatty(ToyRun):
    """Offers the optional views too."""

    def sample_ids(self) -> Sequence[int]:
        return torch.arange(4)  # type: ignore[return-value]

    def control_scalars(self) -> dict[str, float]:
        return {"recycles": 3.0, "depth": 2.0}

    def named_extra_state(self) -> dict[str, object]:
        return {"cursor": {"epoch": 1, "position": 7}, "scale": torch.tensor(2.0)}
