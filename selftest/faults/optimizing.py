"""Faults of optimizer state and hyperparameters: OPT."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import bf16_master, ddp, fsdp2, two_optimizers
from pytest_cplife.selftest.trainers.loop import moving_lr
from torch.distributed.tensor import DTensor

Saved = Sequence[Mapping[str, Any]]


@plant(
    fsdp2.Adapter,
    rule="OPT-01",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B12",),
    likely="no optimizer state came back",
)
class EmptyTemplate(fsdp2.Fsdp2Run):
    """The file is read into the state of a new optimizer, which has no slot for moments."""

    def restore_optimizers(self, saved: Saved) -> None:
        super().restore_optimizers([{**saved[0], "state": {}}])


@plant(
    two_optimizers.Adapter,
    rule="OPT-01",
    subject="norm.weight",
    mesh="fsdp=2",
    public=("B64",),
)
class FirstOptimizerOnly(fsdp2.Fsdp2Run):
    """Of two optimizers one comes back."""

    def restore_optimizers(self, saved: Saved) -> None:
        super().restore_optimizers([saved[0], {**saved[1], "state": {}}])


@plant(
    Reference,
    rule="OPT-01",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B17",),
    likely="only rank 0 has optimizer state",
)
class OptimizerOnOneRank(Trainer):
    """The optimizer's state is loaded where the rank is 0."""

    def load(self, path: Path) -> None:
        super().load(path)
        if self.rank:
            self.optimizer.state.clear()


@plant(
    fsdp2.Adapter,
    rule="OPT-02",
    subject="blocks.0.up.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B20",),
    likely="given out by position",
)
class ByPosition(fsdp2.Fsdp2Run):
    """State is mapped by position, and two layers of one shape have changed places."""

    def restore_optimizers(self, saved: Saved) -> None:
        state = dict(saved[0]["state"])
        a, b = "blocks.0.up.weight", "blocks.1.up.weight"
        state[a], state[b] = state[b], state[a]
        super().restore_optimizers([{**saved[0], "state": state}])


@plant(
    fsdp2.Adapter,
    rule="OPT-02",
    subject="embed.weight[step]",
    mesh="fsdp=2",
    public=("B09",),
    likely="step counts did not",
)
class BiasCorrectionRestarts(fsdp2.Fsdp2Run):
    """Moments come back, step counts do not."""

    def restore_optimizers(self, saved: Saved) -> None:
        super().restore_optimizers(saved)
        for entries in self.optimizers[0].state.values():
            entries["step"] = torch.zeros(())


@plant(
    fsdp2.Adapter,
    rule="OPT-02",
    subject="embed.weight[exp_avg_sq]",
    mesh="fsdp=2",
    public=("B25", "B77"),
    likely="every rank holds what rank 0 had",
)
class RankZerosMoments(fsdp2.Fsdp2Run):
    """Every rank gets rank 0's shard of the second moments."""

    def restore_optimizers(self, saved: Saved) -> None:
        super().restore_optimizers(saved)
        for parameter, entries in self.optimizers[0].state.items():
            if parameter is self.model.embed.weight and self.ctx.rank:
                local = entries["exp_avg_sq"].to_local()
                full = saved[0]["state"]["embed.weight"]["exp_avg_sq"]
                local.copy_(full[: local.shape[0]])


@plant(
    Reference,
    rule="OPT-02",
    subject="scale[exp_avg]",
    mesh="fsdp=2",
    public=("B19",),
    likely="step counts came back and moments did not",
)
class LosesOneMoment(Trainer):
    """The moments of one parameter restart from zero."""

    def load(self, path: Path) -> None:
        super().load(path)
        scale = self.model.get_parameter("scale")
        value = self.optimizer.state[scale]["exp_avg"]
        (value.to_local() if isinstance(value, DTensor) else value).zero_()


@plant(fsdp2.Adapter, rule="OPT-03", subject="embed.weight[exp_avg]", mesh="fsdp=2")
class PlainMoments(fsdp2.Fsdp2Run):
    """The optimizer takes the file's plain moments for shards, without a word."""

    def restore_optimizers(self, saved: Saved) -> None:
        super().restore_optimizers(saved)
        for parameter, entries in self.optimizers[0].state.items():
            if parameter is self.model.embed.weight:
                entries["exp_avg"] = saved[0]["state"]["embed.weight"]["exp_avg"].clone()


@plant(
    fsdp2.Adapter,
    rule="OPT-04",
    subject="optimizer 0 group 0: initial_lr",
    mesh="fsdp=2",
    public=("B07",),
)
class DropsInitialLr(fsdp2.Fsdp2Run):
    """Keys that a new optimizer's groups do not have are not restored."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.optimizers[0].param_groups[0].pop("initial_lr")


@plant(
    fsdp2.Adapter,
    rule="OPT-04",
    subject="optimizer 0 group 0: lr",
    mesh="fsdp=2",
    public=("B65",),
    likely="a fresh optimizer's",
)
class SchedulerAfterLoad(fsdp2.Fsdp2Run):
    """A scheduler is constructed after the optimizer was loaded and writes its first lr."""

    def load(self, path: Path) -> None:
        super().load(path)
        state = self.schedulers[0].state_dict()
        scheduler = moving_lr(self.optimizers[0])
        scheduler.load_state_dict(state)
        self.schedulers = (scheduler,)


@plant(
    Reference,
    rule="OPT-04",
    subject="optimizer 0 group 0: weight_decay",
    mesh="cp=2",
    public=("B11",),
    likely="a fresh optimizer's",
)
class ConstructorsDecay(Trainer):
    """Weight decay is the command line's again, whatever the run had come to."""

    def _step(self) -> float:
        loss = super()._step()
        self.optimizer.param_groups[0]["weight_decay"] *= 0.9
        return loss

    def load(self, path: Path) -> None:
        super().load(path)
        self.optimizer.param_groups[0]["weight_decay"] = self.config.weight_decay


@plant(
    Reference,
    rule="OPT-05",
    subject="optimizer 0 group 0",
    mesh="cp=2",
    public=("B20",),
)
class GroupsChangePlaces(Trainer):
    """Groups are made again from a mapping whose order is another."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.optimizer.param_groups.reverse()


@plant(fsdp2.Adapter, rule="OPT-05", subject="optimizer 0 group 0", mesh="fsdp=2", public=("B20",))
class ReversedParameters(fsdp2.Fsdp2Run):
    """A group is filled again in another order."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.optimizers[0].param_groups[0]["params"].reverse()


@plant(Reference, rule="OPT-06", subject="aux_head.weight[exp_avg]", mesh="cp=2")
class StateForPlaceholders(Trainer):
    """A load makes state for every parameter of the model, to have a template."""

    def load(self, path: Path) -> None:
        super().load(path)
        weight = self.model.get_parameter("aux_head.weight")
        self.optimizer.state[weight] = {"exp_avg": torch.zeros_like(weight)}


@plant(
    bf16_master.Adapter,
    rule="OPT-07",
    subject="embed.weight[master]",
    mesh="fsdp=2",
    public=("B144", "B154"),
)
class CastsToParameterDtype(bf16_master.Fsdp2Run):
    """A generic load casts float32 state to the parameters' bfloat16."""

    def restore_optimizers(self, saved: Saved) -> None:
        super().restore_optimizers(saved)
        for optimizer in self.optimizers:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@plant(fsdp2.Adapter, rule="OPT-07", subject="embed.weight[step]", mesh="fsdp=2", public=("B155",))
class StepInHalf(fsdp2.Fsdp2Run):
    """The whole state is cast to bfloat16 for a broadcast, step counts included."""

    def restore_optimizers(self, saved: Saved) -> None:
        super().restore_optimizers(saved)
        for entries in self.optimizers[0].state.values():
            entries["step"] = entries["step"].bfloat16()


@plant(Reference, rule="OPT-07", subject="embedding.weight[step]", mesh="cp=2", public=("B16",))
class StepAsNumber(Trainer):
    """A tensor step comes back as a Python number."""

    def load(self, path: Path) -> None:
        super().load(path)
        for entries in self.optimizer.state.values():
            entries["step"] = float(entries["step"])


@plant(ddp.Adapter, rule="OPT-08", subject="gain[exp_avg]", mesh="dp=2")
class StateOnOneRank(ddp.DdpRun):
    """One rank's optimizer never keeps the state of a parameter."""

    def update(self) -> None:
        super().update()
        if self.ctx.rank == 1:
            self.optimizers[0].state.pop(self.model.gain, None)
