"""Every rank draws the order of all samples from its global stream, and takes its share of it.

All ranks are seeded alike, so that they draw one order. Nothing else is drawn: there is no dropout,
whose masks would be the same on all ranks as well. The order of the epoch is in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.data import GLOBAL_BATCH, Batch, global_batch
from pytest_cplife.selftest.trainers.loop import STEPS_PER_EPOCH, LoopRun
from pytest_cplife.selftest.trainers.model import TinyNet
from pytest_cplife.selftest.trainers.streams import seed_streams


def gather_samples(ids: tuple[int, ...]) -> Batch:
    """The samples `ids` of the data set, which is the batches of one epoch."""
    epoch = [global_batch(step) for step in range(STEPS_PER_EPOCH)]
    inputs = torch.cat([batch.inputs for batch in epoch])
    targets = torch.cat([batch.targets for batch in epoch])
    return Batch(ids, inputs[list(ids)], targets[list(ids)])


class OrderedRun(LoopRun):
    """Any run of this package, with a data set that is shuffled at each epoch's start."""

    order: tuple[int, ...] = ()

    def seed(self) -> None:
        seed_streams(self.ctx.seed, 0, self.epoch, self.global_step)

    def next_batch(self) -> Batch:
        position = self.global_step % STEPS_PER_EPOCH
        if position == 0:
            self.order = tuple(torch.randperm(STEPS_PER_EPOCH * GLOBAL_BATCH).tolist())
        first = position * GLOBAL_BATCH
        return gather_samples(self.order[first : first + GLOBAL_BATCH])

    def export_extra(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        self.order = tuple(payload["order"])


class Fsdp2Run(OrderedRun, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2", "dp=2,fsdp=2")
    run_class = Fsdp2Run
    serial_run = OrderedRun

    def build_serial_model(self) -> TinyNet:
        model = super().build_serial_model()
        for block in model.blocks:
            block.drop.p = 0.0  # type: ignore[union-attr]
        return model
