"""Faults of averaged weights: EMA, all on the reference, which has an average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.adapter import Run as ReferenceRun
from pytest_cplife.reference_impl.ema import Ema
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant

from pytest_cplife import RankContext


@plant(
    Reference,
    rule="EMA-01",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B109",),
    likely="two updates are made for each step",
)
class UpdatesPerMicroBatch(Ema):
    """The average is updated twice for each step of the optimizer."""

    def update(self) -> None:
        updates = self.updates
        super().update()
        self.updates = updates
        super().update()


@plant(
    Reference,
    rule="EMA-01",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B107",),
    likely="no average moves",
)
class NeverMoves(Ema):
    """Names of one side have a prefix, what does not match is skipped: nothing is averaged."""

    def update(self) -> None:
        self.updates += 1


@plant(
    Reference,
    rule="EMA-02",
    subject="scale",
    mesh="cp=2",
    public=("B61",),
    likely="stand still while others move",
)
class SkipsOneTensor(Ema):
    """One tensor is not reached by the update."""

    def update(self) -> None:
        before = self.shadow["scale"].clone()
        super().update()
        with torch.no_grad():
            self.shadow["scale"].copy_(before)


@plant(
    Reference,
    rule="EMA-02",
    subject="embedding.weight",
    mesh="fsdp=2",
    likely="once per name",
)
class TiedPairTwice(Ema):
    """A tied pair is averaged once per name."""

    def update(self) -> None:
        super().update()
        mine, theirs = self._local_pair("embedding.weight", self.model.embedding.weight)  # type: ignore
        with torch.no_grad():
            mine.lerp_(theirs, 1.0 - self.decay(self.updates))


@plant(
    Reference,
    rule="EMA-03",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B100",),
    likely="made anew",
)
class RebuiltAtLoad(Trainer):
    """The average does not exist yet when the file is read, and starts from the weights."""

    def load(self, path: Path) -> None:
        super().load(path)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.ema.shadow[name].copy_(parameter)


@plant(
    Reference,
    rule="EMA-04",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B102",),
    likely="the warm-up of the decay",
)
class WarmUpRestarts(Trainer):
    """The shadow comes back, the number of its updates does not."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.ema.updates = 0


@plant(Reference, rule="EMA-05", subject="embedding.weight", mesh="cp=2", public=("B114",))
class ShallowCopy(Reference):
    """The average is the live weights themselves."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if not ctx.serial:
            for name, parameter in run.model.named_parameters():
                run.trainer.ema.shadow[name] = parameter.detach()
        return run


@plant(Reference, rule="EMA-06", subject="embedding.weight", mesh="cp=2", public=("B110", "B99"))
class AveragesOnRankZero(Trainer):
    """Only rank 0 updates the average."""

    def _step(self) -> float:
        before = {name: value.clone() for name, value in self.ema.shadow.items()}
        loss = super()._step()
        if self.rank:
            with torch.no_grad():
                for name, value in before.items():
                    self.ema.shadow[name].copy_(value)
        return loss


@plant(Reference, rule="EMA-07", subject="scale", mesh="cp=2")
class LeavesOneOut(Reference):
    """A parameter that was added later has no average."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if not ctx.serial:
            ema = run.trainer.ema
            del ema.shadow["scale"]
            ema.update = lambda: None  # type: ignore[method-assign]
        return run


@plant(Reference, rule="EMA-08", subject="embedding.weight", mesh="cp=2", public=("B06",))
class RestoresFromReference(Ema):
    """What the live weights were is kept by reference, and is the average by then."""

    def _swap_in(self) -> None:
        super()._swap_in()
        self._backup = {name: self._local_pair(name, p)[1] for name, p in self._parameters()}

    def _parameters(self) -> list[tuple[str, torch.Tensor]]:
        return list(self.model.named_parameters())


@plant(Reference, rule="EMA-09", subject="swap under inference mode (evaluated)", mesh="cp=2")
class RefusesInference(Ema):
    """The swap writes with autograd's bookkeeping, which inference mode does not have."""

    def _swap_in(self) -> None:
        if torch.is_inference_mode_enabled():
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode")
        super()._swap_in()


@plant(Reference, rule="EMA-10", subject="embedding.weight", mesh="cp=2")
class NoFinally(Ema):
    """The live weights come back after the block, if it ends well."""

    @contextmanager
    def weights(self) -> Iterator[None]:
        self._swap_in()
        try:
            yield
        except Exception:
            self._backup = None
            raise
        self._swap_out()


@plant(
    Reference,
    rule="EMA-11",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B104",),
    likely="are the averages",
)
class SavesInsideTheSwap(Ema):
    """The saver reads the model while the averages are in it."""

    @contextmanager
    def training_weights(self) -> Iterator[None]:
        yield
