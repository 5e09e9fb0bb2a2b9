"""Faults that are easily found and easily taken for others: what counts is the cause told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.adapter import RestoreAdapter
from pytest_cplife.reference_impl.agreement import gather
from pytest_cplife.reference_impl.ema import Ema, StagedEma
from pytest_cplife.reference_impl.resume import streams
from pytest_cplife.reference_impl.rng import set_streams
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import averaged, fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from torch.distributed.tensor import DTensor


class CountsOwnSamples(fsdp2.Fsdp2Run):
    """Base: a running statistic follows the rank's own samples, and rank 0's is in the file."""

    def step(self) -> float:
        observe = self.model.observe
        own = self.part

        def observe_own(inputs: torch.Tensor) -> None:
            observe(inputs.chunk(own.count)[own.index])

        self.model.observe = observe_own  # type: ignore[method-assign]
        try:
            return super().step()
        finally:
            del self.model.observe


@plant(
    fsdp2.Adapter,
    rule="GRAD-08",
    subject="embed.weight",
    mesh="fsdp=2",
    likely="buffers of their own",
)
class SteersByOwnSamples(CountsOwnSamples):
    """A statistic of each rank's own samples steers the loss, here and after a stop."""


@plant(
    fsdp2.Adapter,
    rule="GO-02",
    subject="embed.weight",
    mesh="fsdp=2",
    likely="first rank's after the load",
)
class ResumesWithFirstRanksStatistics(CountsOwnSamples):
    """Every rank has statistics of its own, of which the file has room for one rank's."""


@plant(
    fsdp2.Adapter,
    rule="SAVE-08",
    subject="blocks.0.up.weight",
    mesh="fsdp=2",
    likely="in evaluation mode",
)
class StaysInEvaluationAfterSave(fsdp2.Fsdp2Run):
    """A save evaluates, and the loop expects to find the mode that it was built in."""

    def train(self, num_steps: int) -> list[float]:
        return [self.step() for _ in range(num_steps)]

    def save(self, path: Path) -> None:
        self.model.eval()
        super().save(path)


@plant(
    averaged.Adapter,
    rule="EMA-01",
    subject="embed.weight",
    mesh="fsdp=2",
    likely="from before the optimizer's step",
)
class AveragesBeforeTheStep(averaged.Fsdp2Run):
    """The average is updated, and then the weights are."""

    def update(self) -> None:
        if self.global_step + 1 >= self.spec.start_step:
            self.update_average()
        LoopRun.update(self)


@plant(
    Reference, rule="EMA-04", subject="embedding.weight", mesh="cp=2", likely="load has replaced"
)
class MakesTheAverageAnew(Ema):
    """A load makes new tensors for the average; who had the old ones looks at what is no more."""

    def commit(self, staged: StagedEma) -> None:
        super().commit(staged)
        self.shadow = {name: value.clone() for name, value in self.shadow.items()}


@plant(
    Reference,
    rule="OPT-04",
    subject="optimizer 0 group 0: weight_decay",
    mesh="cp=2",
    likely="each other's values",
)
class DecaysChangePlaces(Trainer):
    """Two groups are given their weight decay in the order in which another version had them."""

    def load(self, path: Path) -> None:
        super().load(path)
        one, other = self.optimizer.param_groups
        one["weight_decay"], other["weight_decay"] = other["weight_decay"], one["weight_decay"]


@plant(RestoreAdapter, rule="DCP-04", subject="torch random stream", mesh="cp=2", public=("B84",))
class OneRanksStreams(Trainer):
    """Of the streams of all ranks, saved under one key, one rank's are kept."""

    def load_sharded(self, path: Path) -> None:
        super().load_sharded(path)
        set_streams(gather(streams(self))[0]["state"])


@plant(
    fsdp2.Adapter,
    rule="OPT-02",
    subject="blocks.1.down.weight[exp_avg_sq]",
    mesh="fsdp=2",
    likely="only some ranks",
)
class LastRankTurnsRows(fsdp2.Fsdp2Run):
    """The last rank lays the rows of its shard out in another order than it was sent them."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        if self.ctx.rank == self.ctx.world_size - 1:
            for entries in self.optimizers[0].state.values():
                square = entries["exp_avg_sq"]
                assert isinstance(square, DTensor)
                square.to_local().copy_(square.to_local().flip(0))
