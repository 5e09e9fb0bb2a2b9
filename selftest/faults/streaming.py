"""Faults of random streams: RNG."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.adapter import Run as ReferenceRun
from pytest_cplife.reference_impl.rng import shared_integer
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2, own_noise, restore_rng


@plant(
    restore_rng.Adapter,
    rule="RNG-01",
    subject="torch random stream",
    mesh="fsdp=2",
    public=("B77",),
    likely="rank 0's stream",
)
class RankZerosStreams(restore_rng.Fsdp2Run):
    """Rank 0's streams are restored everywhere."""

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        restore_rng.write_streams(payload["streams"][0])


@plant(
    restore_rng.Adapter,
    rule="RNG-01",
    subject="numpy random stream",
    mesh="fsdp=2",
)
class ForgetsNumpy(restore_rng.Fsdp2Run):
    """One of the streams is not restored."""

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        state = np.random.get_state()
        super().restore_extra(payload)
        np.random.set_state(state)


@plant(
    restore_rng.Adapter,
    rule="RNG-01",
    subject="python random stream",
    mesh="fsdp=2",
    public=("B78",),
)
class SeedsAfterRestore(restore_rng.Fsdp2Run):
    """A helper that builds iterators seeds again after the streams were restored."""

    def ready(self) -> None:
        random.seed(self.ctx.seed)


@plant(fsdp2.Adapter, rule="RNG-02", subject="torch random stream", mesh="fsdp=2")
class SeedIsASum(fsdp2.Fsdp2Run):
    """Streams are seeded with seed + rank + epoch, which the start has used already."""

    def seed(self) -> None:
        torch.manual_seed(self.ctx.seed + self.ctx.rank + self.epoch)


@plant(Reference, rule="RNG-02", subject="torch random stream", mesh="cp=2", public=("B78",))
class SeedsAsAtTheStart(Trainer):
    """A load leaves the streams where the start has put them."""

    def load(self, path: Path) -> None:
        state = torch.get_rng_state()
        super().load(path)
        torch.set_rng_state(state)


@plant(fsdp2.Adapter, rule="RNG-03", subject="torch random stream", mesh="fsdp=2", public=("B84",))
class OneSeedForAll(fsdp2.Fsdp2Run):
    """Every rank draws the same noise for other samples."""

    def seed(self) -> None:
        torch.manual_seed(1000 * self.ctx.seed + self.global_step)


@plant(Reference, rule="RNG-04", subject="control scalars", mesh="cp=2")
class OwnControl(ReferenceRun):
    """The scalar that steers control flow is drawn by each rank and not broadcast."""

    def control_scalars(self) -> Mapping[str, float]:
        trainer = self.trainer
        draw = shared_integer(trainer.config.seed, trainer.rank, self.global_step, 1, 1000)
        return {"recycles": float(draw)}


@plant(own_noise.Fresh, rule="GO-02", subject="embed.weight", mesh="fsdp=2")
class ReplaysOwnNoise(own_noise.FreshRun):
    """A generator of the trainer's own is seeded at a load as it was at the start."""

    def seed(self) -> None:
        step, self.global_step = self.global_step, 0
        super().seed()
        self.global_step = step


@plant(own_noise.Kept, rule="GO-02", subject="embed.weight", mesh="fsdp=2")
class ForgetsOwnNoise(own_noise.KeptRun):
    """The state of a generator of the trainer's own is in the file, and nobody reads it."""

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        pass
