"""Faults of saves in the background, and of what is made of sharded checkpoints later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2, sharded
from torch import nn
from torch.distributed.tensor import DTensor


@plant(sharded.Adapter, rule="DCP-21", subject="wait (begun)", mesh="fsdp=2", public=("B132",))
class WaitsForNothing(sharded.Sharded):
    """What the save returns has ended when the save begins."""

    def save_sharded_async(self, path: Path) -> sharded.PendingSave:
        super().save_sharded_async(path)
        done: Future[None] = Future()
        done.set_result(None)
        return done


@plant(sharded.Adapter, rule="DCP-22", subject="embed.weight", mesh="fsdp=2", public=("B130",))
class WritesReferences(sharded.Sharded):
    """The writers have the live tensors, and write what they find when it is their turn."""

    def begin_tensors(self, folder: Path) -> Future[Any]:
        if self.writers is None:
            self.writers = dist.new_group(backend="gloo")
        tensors, pool = self.sharded_tensors(), ThreadPoolExecutor(1)
        return pool.submit(
            lambda: dcp.save(tensors, checkpoint_id=folder, process_group=self.writers)
        )


@plant(
    sharded.Adapter,
    rule="DCP-23",
    subject="optimizer.embed.weight.exp_avg",
    mesh="fsdp=2",
)
class SavesLessMeanwhile(sharded.Sharded):
    """The optimizer is left out where copies would take too much memory."""

    def begin_tensors(self, folder: Path) -> Future[Any]:
        whole = self.sharded_tensors
        self.sharded_tensors = lambda: {"model": whole()["model"]}  # type: ignore[method-assign]
        try:
            return super().begin_tensors(folder)
        finally:
            self.sharded_tensors = whole  # type: ignore[method-assign]


class Unasked(sharded.Pending):
    """A save whose end is waited for, and whose outcome nobody asks for."""

    def __init__(self, run: sharded.Sharded, written: Future[Any], *_: Callable[[], None]) -> None:
        super().__init__(run, written, lambda: None)

    def result(self) -> None:
        self._written.exception()


@plant(sharded.Adapter, rule="DCP-24", subject="save_sharded_async", mesh="fsdp=2")
class NobodyAsks(sharded.Sharded):
    """The future's exception is never raised."""

    def save_sharded_async(self, path: Path) -> sharded.PendingSave:
        return Unasked(self, self.begin_tensors(path))


@plant(Reference, rule="DCP-20", subject="global_step", mesh="cp=2")
class ExportsWithoutStep(Reference):
    """Of a checkpoint to publish, what only a resume needs is left out."""

    def export_plain(self, path: Path, out: Path) -> None:
        super().export_plain(path, out)
        payload = torch.load(out, weights_only=False)
        torch.save({**payload, "global_step": 0}, out)


@plant(fsdp2.Adapter, rule="SEC-07", subject="embed.weight", mesh="fsdp=2")
class ReadsShardsAsWeights(fsdp2.Adapter):
    """DTensors in a file are replaced by their local parts, and rows copied as they come."""

    def load_serial(self, path: Path) -> nn.Module:
        module = self.build_serial_model()
        saved = self.read_checkpoint(path).model
        with torch.no_grad():
            for name, live in module.state_dict().items():
                value = saved[name]
                part = value.to_local() if isinstance(value, DTensor) else value
                (live[: len(part)] if part.dim() else live).copy_(part)
        return module


@plant(sharded.Adapter, rule="DCP-27", subject="checkpoint", mesh="fsdp=2")
class TakesOneForTheOther(sharded.Sharded):
    """A save that is begun during another one is taken for it, and told as made when it ends."""

    def save_sharded_async(self, path: Path) -> sharded.PendingSave:
        if self.pending is not None and not self.pending.ended:
            return self.pending
        return super().save_sharded_async(path)
