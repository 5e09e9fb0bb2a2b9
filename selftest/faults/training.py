"""Faults of training: GRAD, and the data that it takes."""

from __future__ import annotations

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import ddp, fsdp2, global_order, hand_dtensor, tp_only
from pytest_cplife.selftest.trainers.data import Batch, Part
from pytest_cplife.selftest.trainers.streams import seed_streams
from torch import Tensor

from pytest_cplife import RankContext, TrainingRun


@plant(fsdp2.Adapter, rule="GRAD-01", subject="train (uninterrupted)", mesh="fsdp=2")
class RankSkipsCollective(fsdp2.Fsdp2Run):
    """One rank raises in the middle of a step, and the others wait for it."""

    def update(self) -> None:
        super().update()
        if self.ctx.rank == 1 and self.global_step == 1:
            raise RuntimeError("no sharding rule for this operator")


@plant(fsdp2.Adapter, rule="GRAD-02", subject="loss", mesh="fsdp=2")
class LocalLoss(fsdp2.Fsdp2Run):
    """Each rank reports the loss of its own samples."""

    def mean_over_ranks(self, value: Tensor) -> float:
        return value.item()


@plant(fsdp2.Adapter, rule="GRAD-03", subject="global_step", mesh="fsdp=2")
class CountsMicroBatches(fsdp2.Fsdp2Run):
    """The step counter counts micro-batches."""

    def step(self) -> float:
        loss = super().step()
        self.global_step += 1
        return loss


@plant(fsdp2.Adapter, rule="GRAD-03", subject="optimizer.step()", mesh="fsdp=2", public=("B71",))
class StepsTwice(fsdp2.Fsdp2Run):
    """Each update is made twice."""

    def update(self) -> None:
        super().update()
        self.optimizers[0].step()


@plant(Reference, rule="GRAD-04", subject="scale", mesh="cp=2", public=("B116",))
class LosesTinyGradient(Trainer):
    """The gradient of a parameter of one element is always zero."""

    def _step(self) -> float:
        scale = self.model.scale
        if not getattr(self, "_hooked", False):
            scale.register_hook(torch.zeros_like)  # type: ignore[union-attr, operator]
            self._hooked = True
        return super()._step()


@plant(fsdp2.Adapter, rule="GRAD-04", subject="gain", mesh="fsdp=2")
class DropsGradient(fsdp2.Fsdp2Run):
    """A gradient is written to another tensor than the one that the optimizer looks at."""

    def reduce_gradients(self) -> None:
        self.model.gain.grad = None


@plant(hand_dtensor.Adapter, rule="GRAD-05", subject="gain", mesh="cp=2")
class PartialGradients(hand_dtensor.HandRun):
    """The optimizer steps on one rank's terms: nobody has summed them."""

    def reduce_gradients(self) -> None:
        pass


@plant(ddp.Adapter, rule="GRAD-06", subject="embed.weight", mesh="dp=2", public=("B121",))
class NeverSynchronises(ddp.DdpRun):
    """Every backward pass is made under no_sync()."""

    def forward_backward(self, local: Batch) -> Tensor:
        with self.network.no_sync():
            return super().forward_backward(local)


@plant(tp_only.Adapter, rule="GRAD-06", subject="gain", mesh="dp=2,tp=2")
class ReducesDTensorsOnly(tp_only.TpRun):
    """The reduction over dp takes DTensors only and forgets the plain modules."""

    def reduce_gradients(self) -> None:
        plain = {
            name: parameter.grad.clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None and name == "gain"
        }
        super().reduce_gradients()
        self.model.gain.grad = plain["gain"]


@plant(fsdp2.Adapter, rule="GRAD-06", subject="blocks.0.up.weight", mesh="dp=2,fsdp=2")
class ScalesOnOneRank(fsdp2.Fsdp2Run):
    """One rank's gradients are scaled by a factor of its own."""

    def reduce_gradients(self) -> None:
        if self.ctx.rank == 3:
            self.model.blocks[0].up.weight.grad.to_local().mul_(1.5)


@plant(ddp.Adapter, rule="GRAD-07", subject="gain", mesh="dp=2", public=("B149", "B110"))
class DriftingReplica(ddp.DdpRun):
    """A parameter is written on one rank only after the step."""

    def update(self) -> None:
        super().update()
        if self.ctx.rank == 1:
            with torch.no_grad():
                self.model.gain.add_(1e-3)


@plant(Reference, rule="GRAD-07", subject="scale", mesh="dp=2,cp=2", public=("B110",))
class DriftingReference(Trainer):
    """The same, on a DTensor that says it is replicated."""

    def _step(self) -> float:
        loss = super()._step()
        if self.rank == 3:
            with torch.no_grad():
                self.model.scale.to_local().add_(1e-3)  # type: ignore[union-attr, operator]
        return loss


@plant(fsdp2.Adapter, rule="DATA-01", subject="sample ids", mesh="fsdp=2", public=("B85", "B87"))
class LoaderStartsAgain(fsdp2.Fsdp2Run):
    """The loader's position is no part of the file."""

    _position = -1

    def data_step(self) -> int:
        self._position += 1
        return self._position


@plant(Reference, rule="DATA-01", subject="sample ids", mesh="cp=2", public=("B87",))
class ForgetsEpochOfOrder(Trainer):
    """The position comes back, the epoch whose order it counts in does not."""

    def load(self, path) -> None:  # type: ignore[no-untyped-def]
        super().load(path)
        self.epoch, epoch = self.epoch + 1, self.epoch
        assert epoch >= 0


@plant(fsdp2.Adapter, rule="DATA-02", subject="sample 4", mesh="fsdp=2")
class EveryRankTheSame(fsdp2.Adapter):
    """A sampler that does not know the mesh gives every rank the first share."""

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        run = super().start_distributed(ctx)
        run.part = Part(0, ctx.world_size)
        return run


@plant(
    global_order.Adapter,
    rule="DATA-02",
    subject="sample 7",
    mesh="fsdp=2",
    likely="a random stream of its own",
)
class OwnOrder(global_order.Fsdp2Run):
    """The stream that each rank draws the order of all samples from is seeded with its rank."""

    def seed(self) -> None:
        seed_streams(self.ctx.seed, self.ctx.rank, self.epoch, self.global_step)


@plant(Reference, rule="DATA-02", subject="sample 0", mesh="dp=2,cp=2")
class OneShareTwice(Trainer):
    """The ids show the whole batch on one rank and its part on the others."""

    def _step(self) -> float:
        loss = super()._step()
        if self.rank == 0:
            self.last_ids = list(range(3))
        return loss
