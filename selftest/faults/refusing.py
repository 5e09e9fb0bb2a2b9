"""Faults with files that do not fit, zero learning rates, several stops and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import bf16_master, fsdp2
from pytest_cplife.selftest.trainers.data import fixed_inputs
from pytest_cplife.selftest.trainers.named_state import place_like
from torch import Tensor


@plant(bf16_master.Adapter, rule="LOAD-11", subject="embed.weight", mesh="fsdp=2", public=("B148",))
class StaleMasters(bf16_master.Fsdp2Run):
    """Masters were cloned before the weights were loaded, and are not refreshed."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        initial = {p: p.detach().float().clone() for p in self.model.parameters()}
        super().restore_optimizers(saved)
        for parameter, entries in self.optimizers[0].state.items():
            entries["master"] = initial[parameter]


@plant(fsdp2.Adapter, rule="LOAD-11", subject="gain", mesh="fsdp=2", public=("B03",))
class DecayWithoutRate(fsdp2.Fsdp2Run):
    """Weight decay made by hand is not scaled by the learning rate."""

    def update(self) -> None:
        super().update()
        with torch.no_grad():
            self.model.gain.mul_(0.999)


class Lenient(fsdp2.Fsdp2Run):
    """Base: no check of the file, and a load that is not strict."""

    def check_file(self, payload: Mapping[str, Any]) -> None:
        pass

    def restore_model(self, saved: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, live in self.model.state_dict().items():
                if name in saved:
                    live.copy_(place_like(saved[name].clone(), live))


@plant(fsdp2.Adapter, rule="LOAD-12", subject="head.bias", mesh="fsdp=2", public=("B48",))
class MissingKeysPass(Lenient):
    """strict=False, and nobody looks at what was missing."""


@plant(fsdp2.Adapter, rule="LOAD-12", subject="embed.weight", mesh="fsdp=2", public=("B47",))
class CopiesOverlap(Lenient):
    """Of a weight of another size the rows that overlap are copied."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        live = self.model.state_dict()
        super().restore_model({k: v[: len(live[k])] if v.dim() else v for k, v in saved.items()})


@plant(
    fsdp2.Adapter,
    rule="LOAD-13",
    subject="a_module_of_another_architecture.weight",
    mesh="fsdp=2",
)
class UnknownKeysPass(fsdp2.Fsdp2Run):
    """Only the keys that the model knows are asked for."""

    def check_file(self, payload: Mapping[str, Any]) -> None:
        known = self.model.state_dict()
        kept = {name: value for name, value in payload["model"].items() if name in known}
        super().check_file({**payload, "model": kept})

    def restore_model(self, saved: dict[str, Any]) -> None:
        known = self.model.state_dict()
        super().restore_model({name: saved[name] for name in known})


@plant(fsdp2.Adapter, rule="LOAD-14", subject="embed.weight", mesh="fsdp=2")
class ChecksAsItLoads(fsdp2.Fsdp2Run):
    """Tensors are loaded one by one, and what does not fit is found on the way."""

    def check_file(self, payload: Mapping[str, Any]) -> None:
        self.restore_model(self.export_model() | self._fitting(payload["model"]))
        super().check_file(payload)

    def _fitting(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        live = self.model.state_dict()
        fits = {k: v for k, v in saved.items() if k in live and v.shape == live[k].shape}
        missing = {k: v.full_tensor() for k, v in live.items() if k not in fits and "." in k}
        return {**missing, **fits}


@plant(
    fsdp2.Adapter,
    rule="GO-09",
    subject="global_step",
    mesh="fsdp=2",
    public=("B96",),
    likely="the first resume was right",
)
class SavesOwnProgress(fsdp2.Fsdp2Run):
    """A second file counts what was done since the load, not since the start."""

    _loaded = 0

    def counters(self) -> dict[str, Any]:
        return {"global_step": self.global_step - self._loaded, "epoch": self.epoch}

    def restore_counters(self, payload: Mapping[str, Any]) -> None:
        super().restore_counters(payload)
        self._loaded = self.global_step


@plant(fsdp2.Adapter, rule="GO-10", subject="load (rewound)", mesh="fsdp=2", public=("B14",))
class ExpectsMoments(fsdp2.Fsdp2Run):
    """A load takes it that there is optimizer state, also where there was no step."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        if "embed.weight" not in saved[0]["state"]:
            raise KeyError("state.embed.weight.step")
        super().restore_optimizers(saved)


@plant(fsdp2.Adapter, rule="GO-10", subject="embed.weight[step]", mesh="fsdp=2", public=("B01",))
class HiddenStepAtLoad(fsdp2.Fsdp2Run):
    """To have a template, a load makes the optimizer's state by a step with lr 0."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        (optimizer,) = self.optimizers
        if not optimizer.state:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            rate = optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = 0.0
            optimizer.step()
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()


@plant(fsdp2.Adapter, rule="GO-11", subject="frequency", mesh="fsdp=2")
class EvaluationIsObserved(fsdp2.Fsdp2Run):
    """Running statistics follow the evaluation's inputs, too."""

    def predict(self) -> Tensor:
        self.model.observe(fixed_inputs())
        return super().predict()


@plant(Reference, rule="GO-11", subject="torch random stream", mesh="cp=2")
class EvaluationDraws(Trainer):
    """Evaluation shuffles with the stream that training draws from."""

    def predict(self) -> Tensor:
        torch.randperm(8)
        return super().predict()


@plant(fsdp2.Adapter, rule="GO-11", subject="model.training", mesh="fsdp=2")
class StaysInEvaluation(fsdp2.Fsdp2Run):
    """Evaluation leaves dropout off."""

    def predict(self) -> Tensor:
        output = super().predict()
        self.model.eval()
        return output


@plant(fsdp2.Adapter, rule="GO-12", subject="prediction", mesh="fsdp=2", public=("B151",))
class CachedScale(fsdp2.Fsdp2Run):
    """The prediction uses a value derived from the state, which a load does not derive again."""

    _scale = 1.0

    def update(self) -> None:
        super().update()
        self._scale = 1.0 + 0.01 * self.global_step

    def predict(self) -> Tensor:
        return super().predict() * self._scale
