"""The sequence of global batches: a function of the step alone, whatever the mesh."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

VOCABULARY = 10
GLOBAL_BATCH = 8
LENGTH = 5


@dataclass(frozen=True, slots=True)
class Batch:
    """Token sequences and their successors, with the ids of the samples."""

    ids: tuple[int, ...]
    inputs: Tensor
    targets: Tensor

    def part(self, index: int, count: int) -> Batch:
        """The `index`-th of `count` equal parts."""
        size = len(self.ids) // count
        rows = slice(index * size, (index + 1) * size)
        return Batch(self.ids[rows], self.inputs[rows], self.targets[rows])

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids, self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of each global batch a rank trains on."""

    index: int = 0
    count: int = 1


def global_batch(step: int, size: int = GLOBAL_BATCH) -> Batch:
    """The batch of optimizer step `step` (from 0); draws nothing from the global streams."""
    generator = torch.Generator().manual_seed(40_000 + step)
    tokens = torch.randint(VOCABULARY, (size, LENGTH + 1), generator=generator)
    first = step * size
    return Batch(tuple(range(first, first + size)), tokens[:, :-1], tokens[:, 1:])


def fixed_inputs() -> Tensor:
    """Inputs for predictions, never trained on."""
    steps = torch.arange(2 * LENGTH).reshape(2, LENGTH)
    return (3 * steps + 1) % VOCABULARY
