"""The streams of every rank are in the file, and each rank gets its own back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun


def read_streams() -> dict[str, Any]:
    """The states of this rank's global streams, as values that a safe load accepts."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    # Not uint32: pickle, by which the states are gathered, cannot rebuild such tensors.
    words = torch.from_numpy(np.asarray(keys).astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "numpy": (name, words, position, has_gauss, cached),
        "python": random.getstate(),
    }


def write_streams(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    name, words, position, has_gauss, cached = states["numpy"]
    keys = words.numpy().astype(np.uint32)
    np.random.set_state((name, keys, position, has_gauss, cached))
    random.setstate(states["python"])


class StreamsMixin(LoopRun):
    """Adds the streams of all ranks to the file of any run of this package."""

    def export_extra(self) -> dict[str, Any]:
        own = read_streams()
        every: list[Any] = [None] * self.ctx.world_size
        if self.ctx.serial:
            return {"streams": [own]}
        dist.all_gather_object(every, own)
        return {"streams": every}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        streams = payload["streams"]
        # Another number of ranks: the fresh streams that `load` has just seeded stay, on all.
        if len(streams) == self.ctx.world_size:
            write_streams(streams[self.ctx.rank])


class Fsdp2Run(StreamsMixin, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=2", "dp=2,fsdp=2")
    rng_policy = "restore"
    run_class = Fsdp2Run
    serial_run = StreamsMixin
