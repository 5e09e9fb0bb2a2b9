"""Faults that two resumes, two meshes or two shards show beside each other: RNG, DATA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2, restore_rng
from pytest_cplife.selftest.trainers.data import GLOBAL_BATCH
from pytest_cplife.selftest.trainers.streams import seed_streams


@plant(fsdp2.Adapter, rule="RNG-05", subject="torch random stream", mesh="fsdp=2")
class NeighboursMeet(fsdp2.Fsdp2Run):
    """The seed is a sum of rank and step: rank 1 has what rank 0 has a step later."""

    def seed(self) -> None:
        torch.manual_seed(self.ctx.seed + self.ctx.rank + self.global_step)


@plant(fsdp2.Adapter, rule="RNG-05", subject="torch random stream", mesh="fsdp=2")
class NeighboursMeetLater(fsdp2.Fsdp2Run):
    """The ranks' seeds are a thousand apart, and so are the steps at which they meet."""

    def seed(self) -> None:
        torch.manual_seed(self.ctx.seed + 1000 * self.ctx.rank + self.global_step)


@plant(
    restore_rng.Adapter,
    rule="RNG-06",
    subject="torch random stream",
    mesh="dp=2,fsdp=2",
    public=("B83",),
)
class RestoresWhatThereIs(restore_rng.Fsdp2Run):
    """Ranks whose number is in the file restore its stream, the others keep fresh ones."""

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        streams = payload["streams"]
        if self.ctx.rank < len(streams):
            restore_rng.write_streams(streams[self.ctx.rank])


@plant(restore_rng.Adapter, rule="RNG-06", subject="torch random stream", mesh="dp=2,fsdp=2")
class FreshByChance(restore_rng.Fsdp2Run):
    """On another number of ranks the fresh streams are seeded from the system's entropy."""

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        super().restore_extra(payload)
        if len(payload["streams"]) != self.ctx.world_size:
            torch.seed()


@plant(fsdp2.Adapter, rule="RNG-07", subject="dropout noise", mesh="fsdp=2", public=("B84",))
class OneStreamUntilLoad(fsdp2.Fsdp2Run):
    """All ranks draw the same noise until the first resume."""

    def seed(self) -> None:
        rank = self.ctx.rank if self.global_step else 0
        seed_streams(self.ctx.seed, rank, self.epoch, self.global_step)


@plant(Reference, rule="RNG-07", subject="blocks.0.dropout", mesh="fsdp=2,tp=2")
class OwnNoiseOnReplicas(Trainer):
    """Ranks that share an activation each draw a mask for it from their own stream."""

    def _step(self) -> float:
        self.model._shared_seed = lambda: int(torch.randint(2**62, ()).item())
        return super()._step()


@plant(Reference, rule="RNG-07", subject="dropout noise", mesh="cp=2", public=("B84",))
class OneSeedForUnevenParts(Trainer):
    """One seed for all parts of a sequence, which are not equally long."""

    def _step(self) -> float:
        own = int(torch.randint(2**62, ()).item())
        seed = torch.tensor(own, device=self.device)
        dist.broadcast(seed, 0)
        self.model._shared_seed = lambda: int(seed.item())
        return super()._step()


@plant(fsdp2.Adapter, rule="DATA-04", subject="sample 24", mesh="fsdp=2")
class PositionInOwnSamples(fsdp2.Fsdp2Run):
    """The position is counted in one rank's samples, of which other meshes have more or fewer."""

    _ahead = 0

    def data_step(self) -> int:
        return self.global_step + self._ahead

    def export_extra(self) -> dict[str, Any]:
        return {"taken": self.global_step * GLOBAL_BATCH // self.part.count}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        self._ahead = payload["taken"] * self.part.count // GLOBAL_BATCH - self.global_step
