"""Faults that show on another topology only: on another mesh, or by way of a serial run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.adapter import Run as ReferenceRun
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from torch import Tensor

from pytest_cplife import RankContext


@plant(
    fsdp2.Adapter,
    rule="SERIAL-03",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B12",),
)
class SerialFileWithoutMoments(fsdp2.Adapter):
    """The serial branch of the saver was never taught to write the optimizer's state."""

    class serial_run(LoopRun):
        def export_optimizers(self) -> list[Any]:
            return [{**saved, "state": {}} for saved in super().export_optimizers()]


@plant(Reference, rule="SERIAL-03", subject="embedding.weight", mesh="cp=2", public=("B100",))
class AverageOfOneRank(Trainer):
    """A file of one rank is taken for a pretrained one, whose average starts anew."""

    def load(self, path: Path) -> None:
        super().load(path)
        if len(torch.load(path, weights_only=False)["streams"]) == 1:
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    self.ema.shadow[name].copy_(parameter)


@plant(
    fsdp2.Adapter,
    rule="SERIAL-04",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B12",),
)
class SerialLoadOfWeights(fsdp2.Adapter):
    """The serial run takes over weights and counters and starts its optimizer afresh."""

    class serial_run(LoopRun):
        def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
            """Nothing is taken over."""


@plant(Reference, rule="SERIAL-04", subject="scheduler 0: last_epoch", mesh="cp=2")
class SerialScheduleRestarts(Reference):
    """The serial run begins its schedule again."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if ctx.serial:
            fresh = run.trainer.scheduler.state_dict()
            load = run.trainer.load

            def restart(path: Path) -> None:
                load(path)
                run.trainer.scheduler.load_state_dict(fresh)

            run.trainer.load = restart  # type: ignore[method-assign]
        return run


@plant(
    fsdp2.Adapter,
    rule="SERIAL-05",
    subject="blocks.0.up.weight[exp_avg_sq]",
    mesh="fsdp=2",
    public=("B143",),
)
class SerialFileOfTheSecondHand(fsdp2.Adapter):
    """A serial run that has loaded saves the state of what it has stepped itself, and no other."""

    class serial_run(LoopRun):
        _loaded_at = 0

        def load(self, path: Path) -> None:
            super().load(path)
            self._loaded_at = self.global_step

        def export_optimizers(self) -> list[Any]:
            saved = super().export_optimizers()
            fresh = self._loaded_at and self._loaded_at == self.global_step
            return [{**each, "state": {}} for each in saved] if fresh else saved


@plant(Reference, rule="SERIAL-05", subject="embedding.weight", mesh="cp=2", public=("B102",))
class SerialFileOfLoadedWeights(Reference):
    """A serial run that has loaded saves the weights as the average, too."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if ctx.serial:
            save, ema = run.trainer.save, run.trainer.ema

            def saved(path: Path) -> None:
                kept = {name: value.clone() for name, value in ema.shadow.items()}
                if run.trainer.loaded:  # type: ignore[attr-defined]
                    for name, parameter in run.model.named_parameters():
                        ema.shadow[name].copy_(parameter.detach())
                save(path)
                for name, value in kept.items():
                    ema.shadow[name].copy_(value)

            load = run.trainer.load

            def loaded(path: Path) -> None:
                load(path)
                run.trainer.loaded = True  # type: ignore[attr-defined]

            run.trainer.loaded = False  # type: ignore[attr-defined]
            run.trainer.save, run.trainer.load = saved, loaded  # type: ignore[method-assign]
        return run


@plant(
    fsdp2.Adapter,
    rule="SERIAL-06",
    subject="blocks.0.up.weight",
    mesh="fsdp=2",
    likely="scaled by the number of ranks",
)
class RateTimesRanks(fsdp2.Fsdp2Run):
    """Each step is made with the learning rate times the number of ranks."""

    def update(self) -> None:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= self.ctx.world_size
        super().update()
        # The schedule has made new rates of its own.
        assert [group["lr"] for group in groups] != rates


@plant(
    Reference,
    rule="SERIAL-06",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B93",),
    likely="other data",
)
class SerialRunSkipsABatch(Reference):
    """The serial run counts the batch that was under way when the file was written as used."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if ctx.serial:
            load = run.trainer.load

            def skip(path: Path) -> None:
                load(path)
                run.trainer.position -= 1

            run.trainer.load = skip  # type: ignore[method-assign]
        return run


@plant(Reference, rule="SERIAL-07", subject="prediction", mesh="cp=2", public=("B105",))
class SerialRunPredictsAverages(Reference):
    """The serial run evaluates the averaged weights, the distributed one the live ones."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if ctx.serial:
            predict = run.trainer.predict

            def averaged() -> Tensor:
                with run.trainer.ema.weights():
                    return predict()

            run.trainer.predict = averaged  # type: ignore[method-assign]
        return run


@plant(fsdp2.Adapter, rule="SERIAL-07", subject="prediction", mesh="fsdp=2")
class SummedPrediction(fsdp2.Fsdp2Run):
    """What every rank has computed whole is summed over the ranks."""

    def predict(self) -> Tensor:
        return super().predict() * self.ctx.world_size


@plant(
    fsdp2.Adapter,
    rule="GO-13",
    subject="embed.weight",
    mesh="fsdp=2",
    likely="scaled by the number of ranks",
)
class RateOfTheGrownWorld(fsdp2.Fsdp2Run):
    """A load on more ranks than the file's scales the learning rate up, from the next step on."""

    _scale = 1.0

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), "ranks": self.ctx.world_size}

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(payload)
        self._scale = self.ctx.world_size / payload.get("ranks", self.ctx.world_size)

    def update(self) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= self._scale
        super().update()


@plant(
    Reference,
    rule="GO-13",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B93",),
    likely="other data",
)
class PositionOfOtherRanks(Trainer):
    """The data position of a file of fewer ranks is scaled down to the ranks of this one."""

    def load(self, path: Path) -> None:
        super().load(path)
        before = len(torch.load(path, weights_only=False)["streams"])
        now = self.topology.size("cp") * self.topology.size("dp")
        self.position = self.position * before // now


@plant(fsdp2.Adapter, rule="GO-14", subject="prediction", mesh="fsdp=4")
class PredictsPerRank(fsdp2.Fsdp2Run):
    """A temperature is worked out from the number of ranks."""

    def predict(self) -> Tensor:
        return super().predict() / (1 + 0.01 * self.ctx.world_size)


@plant(Reference, rule="GO-14", subject="prediction", mesh="cp=2")
class PartsInAnotherOrder(Trainer):
    """The ranks' parts of a sequence are put together from the last one to the first."""

    def predict(self) -> Tensor:
        parts = super().predict().chunk(self.topology.size("cp"), dim=1)
        return torch.cat(parts[::-1], dim=1)
