"""Faults of a load that weights do not show: counters, the file, other meshes, replicas: LOAD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import ddp, fsdp2
from torch.distributed.tensor import DTensor


@plant(fsdp2.Adapter, rule="LOAD-07", subject="global_step", mesh="fsdp=2", public=("B71",))
class CountsFromTheLoad(fsdp2.Fsdp2Run):
    """The step counter is no part of the file."""

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        self.epoch = payload["epoch"]


@plant(Reference, rule="LOAD-07", subject="global_step", mesh="cp=2", public=("B71",))
class OneStepAhead(Trainer):
    """The file is labelled with the step that comes next."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.global_step += 1


@plant(fsdp2.Adapter, rule="LOAD-08", subject="checkpoint", mesh="fsdp=2")
class MigratesInPlace(fsdp2.Fsdp2Run):
    """A load writes the file again in a newer format."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.barrier()
        if self.ctx.rank == 0:
            torch.save(torch.load(path, weights_only=True) | {"format": 2}, path)


@plant(fsdp2.Adapter, rule="LOAD-09", subject="load (crossed)", mesh="fsdp=2", public=("B37",))
class OneWorldSizeOnly(fsdp2.Fsdp2Run):
    """The file can only be loaded by as many ranks as have saved it."""

    def export_extra(self) -> dict[str, Any]:
        return {"world": self.ctx.world_size}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        if payload["world"] != self.ctx.world_size:
            raise RuntimeError(f"saved by {payload['world']} ranks")


@plant(
    fsdp2.Adapter,
    rule="LOAD-09",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B64", "B37"),
)
class NoMomentsElsewhere(OneWorldSizeOnly.run_class):  # type: ignore[name-defined, misc]
    """On another number of ranks the optimizer's state is silently left out."""

    def load(self, path: Path) -> None:
        self._world = torch.load(path, weights_only=True)["world"]
        super().load(path)

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        if self._world == self.ctx.world_size:
            super().restore_optimizers(saved)

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        pass


@plant(ddp.Adapter, rule="LOAD-10", subject="embed.weight", mesh="dp=2", public=("B149",))
class LoadsOnRankZero(ddp.DdpRun):
    """The file is loaded by rank 0; the list of what is then sent to the others is empty."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        if self.ctx.rank == 0:
            super().restore_model(saved)


@plant(
    fsdp2.Adapter,
    rule="LOAD-10",
    subject="embed.weight[exp_avg]",
    mesh="dp=2,fsdp=2",
    public=("B17",),
)
class MomentsOnTheFirstReplica(fsdp2.Fsdp2Run):
    """The second replica of the shards gets no moments."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        if self.ctx.rank >= 2:
            for entries in self.optimizers[0].state.values():
                for value in entries.values():
                    if isinstance(value, DTensor):
                        value.to_local().zero_()
