"""The training loop and the plain checkpoint that the trainers of this package share."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytest_cplife.selftest.trainers.agreement import on_rank_zero
from pytest_cplife.selftest.trainers.architecture import (
    check_architecture,
    check_named,
    check_same_file,
)
from pytest_cplife.selftest.trainers.data import Batch, Part, fixed_inputs, global_batch
from pytest_cplife.selftest.trainers.model import TinyNet, build_model
from pytest_cplife.selftest.trainers.named_state import (
    check_optimizer,
    export_optimizer,
    gathered,
    plain,
    restore_optimizer,
)
from pytest_cplife.selftest.trainers.streams import seed_streams
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from pytest_cplife import LifecycleAdapter, RankContext, TrainingRun

STEPS_PER_EPOCH = 4


def moving_lr(optimizer: torch.optim.Optimizer) -> LambdaLR:
    """A schedule that gives every step a learning rate of its own."""
    return LambdaLR(optimizer, lambda step: 1.0 / (1.0 + 0.15 * step))


def check_records(path: Path) -> None:
    """Compare the checksums of the archive at `path`, at which torch does not look."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{path}: {damaged} is damaged")


class LoopRun(TrainingRun):
    """One run; subclasses override how it distributes, exports and restores.

    Attributes:
        network: what is called in the forward pass; `model` itself or a wrapper of it.
        micro_batches: parts into which a rank's share of a batch is accumulated.
    """

    model: TinyNet
    micro_batches = 1
    steps_per_epoch = STEPS_PER_EPOCH

    def __init__(
        self,
        ctx: RankContext,
        model: TinyNet,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[LRScheduler] = (),
        part: Part = Part(),  # noqa: B008 - immutable
        network: nn.Module | None = None,
    ) -> None:
        self.ctx = ctx
        self.model = model
        self.optimizers = tuple(optimizers)
        self.schedulers = tuple(schedulers)
        self.part = part
        self.network = model if network is None else network
        self.global_step = 0
        self._ids: tuple[int, ...] = ()
        self.seed()

    def seed(self) -> None:
        """Give this rank its streams for the step that comes next."""
        seed_streams(self.ctx.seed, self.ctx.rank, self.epoch, self.global_step)

    # training

    def train(self, num_steps: int) -> list[float]:
        self.model.train()
        return [self.step() for _ in range(num_steps)]

    def step(self) -> float:
        """One optimizer step on this rank's share of the next global batch."""
        batch = self.next_batch().to(self.ctx.device)
        self.model.observe(batch.inputs)
        local = batch.part(self.part.index, self.part.count)
        self._ids = local.ids
        self.zero_grad()
        loss = self.forward_backward(local)
        self.reduce_gradients()
        self.update()
        self.global_step += 1
        self.epoch = self.global_step // self.steps_per_epoch
        return self.mean_over_ranks(loss)

    def next_batch(self) -> Batch:
        """The next global batch, the same on all ranks."""
        return global_batch(self.data_step())

    def data_step(self) -> int:
        """Which global batch comes next."""
        return self.global_step

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def forward_backward(self, local: Batch) -> Tensor:
        """Gradients of the mean loss over the rank's share; returns that loss."""
        total = torch.zeros((), device=self.ctx.device)
        for index in range(self.micro_batches):
            loss = self.loss(local.part(index, self.micro_batches)) / self.micro_batches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def loss(self, batch: Batch) -> Tensor:
        logits = self.network(batch.inputs)
        return F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())

    def reduce_gradients(self) -> None:
        """Whatever the wrapper has not done for the gradients; by default it has done all."""

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()

    def mean_over_ranks(self, value: Tensor) -> float:
        if not self.ctx.serial:
            dist.all_reduce(value)
        return value.item() / self.ctx.world_size

    # looking

    @torch.no_grad()
    def predict(self) -> Tensor:
        training = self.model.training
        self.model.eval()
        output = plain(self.network(fixed_inputs().to(self.ctx.device)))
        self.model.train(training)
        return output

    def sample_ids(self) -> Sequence[int]:
        return self._ids

    # saving and loading

    def save(self, path: Path) -> None:
        payload = {
            "model": self.export_model(),
            "optimizers": self.export_optimizers(),
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            **self.counters(),
            **self.export_extra(),
        }
        on_rank_zero(self.ctx, lambda: self.write(payload, path))

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        """Write the file on one rank, wholly or not at all."""
        unfinished = path.with_name(f"{path.name}.unfinished")
        torch.save(payload, unfinished)
        unfinished.replace(path)

    def load(self, path: Path) -> None:
        payload = self.read_file(path)
        self.check_agreement(path)
        self.check_file(payload)
        self.restore_optimizers(payload["optimizers"])
        self.restore_model(payload["model"])
        for scheduler, state in zip(self.schedulers, payload["schedulers"], strict=True):
            scheduler.load_state_dict(state)
        self.restore_counters(payload)
        self.seed()
        self.restore_extra(payload)

    def read_file(self, path: Path) -> Any:
        check_records(path)
        # Mapped: the ranks of a host share the file's pages, and hold what they take out of it.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)

    def check_agreement(self, path: Path) -> None:
        """Refuse a path under which the ranks find different files."""
        check_same_file(path)

    def check_file(self, payload: Mapping[str, Any]) -> None:
        """Refuse a file that does not fit, before anything is changed."""
        held = [name for name, value in payload["model"].items() if isinstance(value, DTensor)]
        if held:
            raise ValueError(f"DTensors in the file, of which each is one rank's part: {held}")
        check_architecture(payload["model"], self.model.state_dict())
        self.check_optimizers(payload["optimizers"])

    def check_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            check_optimizer(self.model, optimizer, state)

    def barrier(self) -> None:
        if not self.ctx.serial:
            dist.barrier()

    def export_model(self) -> dict[str, Any]:
        return gathered(self.model.state_dict(), keep=self.ctx.rank == 0)

    def restore_model(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved, strict=True)

    def export_optimizers(self) -> list[Any]:
        keep = self.ctx.rank == 0
        return [export_optimizer(self.model, optimizer, keep) for optimizer in self.optimizers]

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        check_named(saved)
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            restore_optimizer(self.model, optimizer, state)

    def counters(self) -> dict[str, Any]:
        return {"global_step": self.global_step, "epoch": self.epoch}

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        self.global_step, self.epoch = payload["global_step"], payload["epoch"]

    def export_extra(self) -> dict[str, Any]:
        """What else the file holds, by key. Collective."""
        return {}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        """Put back what `export_extra` gave; called last, after the streams were seeded."""


class LoopAdapter(LifecycleAdapter):
    """An adapter whose serial run is the plain loop."""

    steps_per_epoch = STEPS_PER_EPOCH
    serial_run: type[LoopRun] = LoopRun

    def build_serial_model(self) -> TinyNet:
        return build_model()

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        """The optimizers of a model, distributed or not."""
        # foreach=False: the fused loops refuse parameters of mixed kinds and meshes.
        return [torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1, foreach=False)]

    def start(self, ctx: RankContext) -> TrainingRun:
        torch.set_num_threads(1)
        if ctx.serial:
            return self.start_serial(ctx)
        return self.start_distributed(ctx)

    def start_serial(self, ctx: RankContext) -> TrainingRun:
        model = self.build_serial_model().to(ctx.device)
        optimizers = self.optimizers(model)
        return self.serial_run(ctx, model, optimizers, [moving_lr(each) for each in optimizers])

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        raise NotImplementedError
