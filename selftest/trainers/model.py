"""A model of a few hundred weights with everything in it that is easily lost.

It has a tied pair whose second name comes last, two blocks of the same shapes, sizes that no
mesh divides (7, 10, 13), a parameter of one element, a frozen one, float and integer buffers that
move with the data, and a table that is never saved.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pytest_cplife.selftest.trainers.data import LENGTH, VOCABULARY
from torch import Tensor, nn

WIDTH = 7
HIDDEN = 13


class Block(nn.Module):
    """A residual block; under tensor parallelism the wide activation is the sharded one.

    Dropout acts there and nowhere else, so that ranks which share an activation never draw
    a mask for it each on their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.drop = nn.Dropout(0.2)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        update: Tensor = self.down(self.drop(F.gelu(self.up(hidden))))
        return hidden + update


class TinyNet(nn.Module):
    """A next-token model without attention."""

    frequency: Tensor
    seen: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.gain = nn.Parameter(torch.full((1,), 1.5))
        self.shift = nn.Parameter(torch.linspace(-0.2, 0.2, WIDTH), requires_grad=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.embed.weight
        self.register_buffer("frequency", torch.full((VOCABULARY,), 1.0 / VOCABULARY))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        angles = torch.arange(LENGTH)[:, None] / (1 + torch.arange(WIDTH))
        self.register_buffer("table", torch.sin(angles), persistent=False)

    def observe(self, inputs: Tensor) -> None:
        """Follow the tokens' frequency; every rank sees the global batch, so replicas agree."""
        counts = torch.bincount(inputs.flatten(), minlength=VOCABULARY)
        share = (counts / counts.sum()).to(self.frequency.dtype)
        self.frequency.lerp_(share, 0.1)
        self.seen += inputs.numel()

    def embedded(self, inputs: Tensor) -> Tensor:
        """What the first block gets."""
        hidden: Tensor = self.embed(inputs) + self.table
        return hidden

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embedded(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden) * self.gain + self.shift
        logits: Tensor = self.head(hidden) - self.frequency
        return logits


def build_model(kind: type[TinyNet] = TinyNet) -> TinyNet:
    """The same weights at every call; the caller's random streams stay where they were."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(11)
        return kind()
