"""A data set and its order: the sequence of global batches never depends on the mesh.

Every epoch is a permutation of the same samples that follows from (seed, epoch) alone, so a
cursor (epoch, position) is all that a resume needs, on any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .rng import Purpose, sequence


@dataclass(frozen=True)
class Batch:
    """A global batch: the ids of its samples, inputs and next tokens."""

    ids: Tensor
    tokens: Tensor
    targets: Tensor


class Data:
    """Synthetic token sequences (noisy arithmetic progressions), in batches of `batch_size`."""

    def __init__(
        self, vocabulary: int, length: int, seed: int, batch_size: int = 8, steps_per_epoch: int = 4
    ) -> None:
        self.seed = seed
        self.batch_size = batch_size
        self.steps_per_epoch = steps_per_epoch
        count = batch_size * steps_per_epoch
        draw = np.random.default_rng(sequence(Purpose.SAMPLES, seed))
        first = draw.integers(vocabulary, size=(count, 1))
        stride = draw.integers(1, 4, size=(count, 1))
        noise = draw.integers(2, size=(count, length + 1)) * (draw.random((count, 1)) < 0.5)
        series = (first + stride * np.arange(length + 1) + noise) % vocabulary
        self._samples = torch.from_numpy(series.astype(np.int64))

    def batch(self, epoch: int, position: int) -> Batch:
        """The batch number `position` of `epoch`."""
        order = np.random.default_rng(sequence(Purpose.ORDER, self.seed, epoch))
        ids = order.permutation(len(self._samples))
        ids = ids[position * self.batch_size : (position + 1) * self.batch_size]
        chosen = self._samples[torch.from_numpy(ids)]
        return Batch(torch.from_numpy(ids), chosen[:, :-1], chosen[:, 1:])
