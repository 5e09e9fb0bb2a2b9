"""Random streams under the policy ``offset``: fresh ones for each rank, epoch and step."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_streams(seed: int, rank: int, epoch: int, step: int) -> None:
    """Seed every global stream.

    A sum such as ``seed + rank + step`` would give rank 1 at step 4 the stream of rank 2 at
    step 3; a seed sequence mixes its words so that none of them meet.
    """
    words = np.random.SeedSequence([seed, rank, epoch, step]).generate_state(3, np.uint32)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))
