"""Faults of parameters, their names and the serial model: PARAM and SERIAL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.adapter import Run as ReferenceRun
from pytest_cplife.selftest.faults.start import Wrapping
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import ddp, fsdp2
from pytest_cplife.selftest.trainers.model import TinyNet
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_cplife import RankContext, TrainingRun


@plant(fsdp2.Adapter, rule="PARAM-01", subject="shift", mesh="fsdp=2", public=("B20",))
class OtherOrder(Wrapping):
    """A parameter is registered later than in the serial model."""

    def before(self, model: TinyNet, ctx: RankContext) -> None:
        model._parameters["gain"] = model._parameters.pop("gain")


@plant(fsdp2.Adapter, rule="PARAM-01", subject="blocks.0.module.up.weight", mesh="fsdp=2")
class WrapperName(Wrapping):
    """A wrapper's own attribute name stays in the parameters' names."""

    def before(self, model: TinyNet, ctx: RankContext) -> None:
        class Wrapper(nn.Module):
            def __init__(self, module: nn.Module) -> None:
                super().__init__()
                self.module = module

            def forward(self, hidden: torch.Tensor) -> Any:
                return self.module(hidden)

        model.blocks[0] = Wrapper(model.blocks[0])


@plant(Reference, rule="PARAM-02", subject="prior", mesh="cp=2")
class HalfOfIt(Reference):
    """A frozen parameter is cast to half precision on the way."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if not ctx.serial:
            run.model.prior.data = run.model.prior.data.bfloat16()  # type: ignore[union-attr]
        return run


@plant(fsdp2.Adapter, rule="PARAM-03", subject="norm.weight", mesh="fsdp=2", public=("B146",))
class OwnInitialWeights(Wrapping):
    """Weights are drawn after sharding, from each rank's own stream."""

    def after(self, model: TinyNet, ctx: RankContext) -> None:
        generator = torch.Generator().manual_seed(ctx.rank)
        with torch.no_grad():
            model.norm.weight.to_local().normal_(1.0, 0.1, generator=generator)


@plant(fsdp2.Adapter, rule="PARAM-04", subject="table", mesh="fsdp=2", public=("B60", "B58"))
class JunkTable(Wrapping):
    """A table that is never saved is filled on rank 0 only."""

    def after(self, model: TinyNet, ctx: RankContext) -> None:
        if ctx.rank:
            model.table.fill_(0.5)


@plant(fsdp2.Adapter, rule="PARAM-05", subject="gain", mesh="fsdp=2")
class FrozenByAccident(Wrapping):
    """A parameter is made again without its requires_grad."""

    def before(self, model: TinyNet, ctx: RankContext) -> None:
        model.gain.requires_grad_(False)


@plant(Reference, rule="PARAM-05", subject="prior", mesh="cp=2")
class Thawed(Reference):
    """Wrapping gives every parameter the default requires_grad."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        if not ctx.serial:
            run.model.prior.requires_grad_(True)  # type: ignore[union-attr]
        return run


@plant(Reference, rule="PARAM-06", subject="aux_head", mesh="cp=2")
class PlaceholderRuns(Reference):
    """A module that is not ported computes something all the same."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        run.model.aux_head.forward = lambda *inputs: torch.zeros(())  # type: ignore
        return run


@plant(Reference, rule="PARAM-10", subject="aux_head", mesh="cp=2")
class NamelessPlaceholder(Reference):
    """A module that is not ported refuses to run without a word about which it is."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)

        def refuse(*inputs: object) -> None:
            raise NotImplementedError

        run.model.aux_head.forward = refuse  # type: ignore
        return run


@plant(Reference, rule="PARAM-06", subject="aux_head.weight", mesh="cp=2")
class PlaceholderOptimised(Reference):
    """The optimizer is built over all parameters, those of placeholders included."""

    def start(self, ctx: RankContext) -> ReferenceRun:
        run = super().start(ctx)
        run.optimizers[0].param_groups[0]["params"].append(run.model.aux_head.weight)  # type: ignore
        return run


@plant(
    fsdp2.Adapter,
    rule="PARAM-07",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B24",),
)
class OptimizerBuiltFirst(fsdp2.Adapter):
    """The optimizer is built before the model is sharded and holds what it then was."""

    def wrap(self, module: nn.Module, ctx: RankContext) -> TinyNet:
        assert isinstance(module, TinyNet)
        self._built = super().optimizers(module)
        return super().wrap(module, ctx)

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        return getattr(self, "_built", None) or super().optimizers(model)


@plant(
    fsdp2.Adapter,
    rule="PARAM-07",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B22",),
)
class OptimizerAfterForward(Wrapping):
    """The optimizer is built after a forward pass that leaves the root's weights gathered."""

    def after(self, model: TinyNet, ctx: RankContext) -> None:
        with torch.no_grad():
            model(torch.zeros(1, 5, dtype=torch.int64))
        self._built = super().optimizers(model)
        model.reshard()  # type: ignore[operator]

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        return getattr(self, "_built", None) or super().optimizers(model)


@plant(
    fsdp2.Adapter,
    rule="PARAM-08",
    subject="embed.weight = head.weight",
    mesh="fsdp=2",
    public=("B52",),
)
class BrokenTie(Wrapping):
    """Materialising name by name gives each of two tied names a tensor of its own."""

    def before(self, model: TinyNet, ctx: RankContext) -> None:
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())


@plant(
    ddp.Adapter,
    rule="PARAM-08",
    subject="embed.weight = head.weight",
    mesh="dp=2",
    public=("B53",),
)
class TieBrokenOffRankZero(ddp.Adapter):
    """Only ranks above 0 materialise module by module, and lose the tie."""

    def start_distributed(self, ctx: RankContext) -> TrainingRun:
        run = super().start_distributed(ctx)
        if ctx.rank:
            model = run.model
            model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
        return run


@plant(fsdp2.Adapter, rule="PARAM-09", subject="shift", mesh="fsdp=2")
class DecaysFrozenWeights(fsdp2.Fsdp2Run):
    """Weight decay made by hand takes the frozen parameters along."""

    def update(self) -> None:
        super().update()
        with torch.no_grad():
            self.model.shift.mul_(0.99)


@plant(ddp.Adapter, rule="PARAM-09", subject="shift", mesh="dp=2")
class KeepsADryRunsGradients(ddp.Adapter):
    """A dry run reserves memory before anything is frozen, and not all of it is cleared."""

    def distribute(self, model: TinyNet) -> DistributedDataParallel:
        model.shift.requires_grad_(True)
        model.eval()
        model(torch.zeros(1, 5, dtype=torch.int64)).sum().backward()
        model.train()
        model.shift.requires_grad_(False)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = None
        return super().distribute(model)

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        return [torch.optim.AdamW(trained, lr=0.02, weight_decay=0.1, foreach=False)]


@plant(fsdp2.Adapter, rule="SERIAL-01", subject="embed.weight", mesh="fsdp=2", public=("B48",))
class LenientSerialLoad(fsdp2.Adapter):
    """The serial load looks for other names and does not mind finding none."""

    def load_serial(self, path: Path) -> nn.Module:
        module = self.build_serial_model()
        saved = self.read_checkpoint(path).model
        module.load_state_dict({f"model.{name}": v for name, v in saved.items()}, strict=False)
        return module


@plant(fsdp2.Adapter, rule="SERIAL-02", subject="embed.weight", mesh="fsdp=2")
class UnseededSerialModel(fsdp2.Adapter):
    """The serial model draws its weights from wherever the global stream is."""

    def build_serial_model(self) -> TinyNet:
        return TinyNet()
