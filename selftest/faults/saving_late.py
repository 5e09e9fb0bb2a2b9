"""Faults of a plain checkpoint at other times, and of what is in it beside the weights."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import averaged, ddp, fsdp2
from torch.distributed.tensor import Shard


@plant(
    fsdp2.Adapter,
    rule="SAVE-11",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B01",),
    likely="has freed the gradients",
)
class FreesGradients(fsdp2.Fsdp2Run):
    """The saver frees the gradients to have room for its copies."""

    def export_model(self) -> dict[str, Any]:
        self.zero_grad()
        return super().export_model()


@plant(Reference, rule="SAVE-11", subject="embedding.weight", mesh="cp=2")
class AveragesGradientsAgain(Trainer):
    """The saver brings the run to rest first, and so averages the gradients a second time."""

    def save(self, path: Path) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
        super().save(path)


@plant(fsdp2.Adapter, rule="SAVE-12", subject="checkpoint", mesh="fsdp=2", public=("B130",))
class WritesLate(fsdp2.Fsdp2Run):
    """What the writer is given is written again when it is ready, a step later."""

    _path: Path | None = None

    def save(self, path: Path) -> None:
        super().save(path)
        self._path = path

    def step(self) -> float:
        loss = super().step()
        path, self._path = self._path, None
        if path is not None:
            super().save(path)
        return loss


@plant(ddp.Adapter, rule="LOAD-08", subject="checkpoint", mesh="dp=2")
class TrainsInTheFile(ddp.DdpRun):
    """The file is mapped with its pages shared, and the optimizer takes its tensors as they are."""

    def load(self, path: Path) -> None:
        super().load(path)
        with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):  # type: ignore[no-untyped-call]
            saved = torch.load(path, mmap=True, weights_only=True)["optimizers"]
        self.restore_optimizers(saved)


@plant(
    fsdp2.Adapter,
    rule="SAVE-04",
    subject="optimizers[0]['state']['_orig_mod.embed.weight']",
    mesh="fsdp=2",
    public=("B43",),
)
class CompileNamesInTheOptimizer(fsdp2.Fsdp2Run):
    """The names are cleaned in the model's part of the file and not in the optimizer's."""

    def export_optimizers(self) -> list[Any]:
        saved = super().export_optimizers()
        for optimizer in saved:
            state = optimizer.get("state", {})
            optimizer["state"] = {f"_orig_mod.{name}": entries for name, entries in state.items()}
        return saved


@plant(
    averaged.Adapter,
    rule="SAVE-04",
    subject="ema['shadow']['module.embed.weight']",
    mesh="fsdp=2",
    public=("B107",),
)
class WrapperNamesInTheAverage(averaged.Fsdp2Run):
    """The average was made of the wrapped model, and is saved by its names."""

    def export_shadow(self) -> dict[str, Any]:
        return {f"module.{name}": value for name, value in super().export_shadow().items()}


@plant(
    fsdp2.Adapter,
    rule="SAVE-04",
    subject="blocks.0._checkpoint_wrapped_module.up.weight",
    mesh="fsdp=2",
    public=("B43",),
)
class CheckpointWrapperName(fsdp2.Fsdp2Run):
    """Activation checkpointing wraps a block, and its name goes to the file."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        wrapped = "blocks.0._checkpoint_wrapped_module."
        return {name.replace("blocks.0.", wrapped): value for name, value in saved.items()}


@dataclass
class Settings:
    """How the run was made."""

    width: int


@plant(fsdp2.Adapter, rule="SAVE-17", subject="embed.weight", mesh="fsdp=2")
class GathersByAddingUp(fsdp2.Fsdp2Run):
    """The whole is the sum of the ranks' parts, each among zeros: what was -0.0 is 0.0."""

    def export_model(self) -> dict[str, Any]:
        return {
            name: value + torch.zeros_like(value) for name, value in super().export_model().items()
        }


@plant(ddp.Adapter, rule="SAVE-17", subject="norm.weight", mesh="dp=2")
class CleansWhatItLoads(ddp.DdpRun):
    """A load keeps numbers within what another version of the trainer could hold of them."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        limit = torch.finfo(torch.float16).max
        super().restore_model(
            {
                name: v.clamp(-limit, limit) if v.is_floating_point() else v
                for name, v in saved.items()
            }
        )


@plant(fsdp2.Adapter, rule="SERIAL-08", subject="checkpoint", mesh="fsdp=2")
class PicklesItsSettings(fsdp2.Fsdp2Run):
    """The settings go to the file as the object that they are."""

    def export_extra(self) -> dict[str, Any]:
        return {**super().export_extra(), "settings": Settings(width=7)}

    def read_file(self, path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=False)


@plant(fsdp2.Adapter, rule="SERIAL-08", subject="torch.distributed.tensor", mesh="fsdp=2")
class KeepsAPlacement(fsdp2.Fsdp2Run):
    """A placement of torch's is kept beside the tensors, to lay them out again."""

    def export_extra(self) -> dict[str, Any]:
        return {**super().export_extra(), "placement": Shard(0)}


@plant(fsdp2.Adapter, rule="GO-15", subject="log[0]", mesh="fsdp=2", public=("B96",))
class LogOfThisProcess(fsdp2.Fsdp2Run):
    """What is logged since the load is saved, and what was loaded is not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._log: list[float] = []

    def step(self) -> float:
        self._log.append(super().step())
        return self._log[-1]

    def export_extra(self) -> dict[str, Any]:
        return {**super().export_extra(), "log": list(self._log)}


@plant(averaged.Adapter, rule="GO-08", subject="embed.weight", mesh="fsdp=2", public=("B143",))
class SavesTheLoadedAverage(averaged.Fsdp2Run):
    """After a load the average that is saved is the one that was loaded."""

    _loaded: dict[str, Any] | None = None

    def load(self, path: Path) -> None:
        super().load(path)
        self._loaded = super().export_shadow()
        self._loaded = {name: value.clone() for name, value in self._loaded.items()}

    def export_shadow(self) -> dict[str, Any]:
        own = super().export_shadow()
        return own if self._loaded is None else self._loaded


@plant(Reference, rule="GO-15", subject="extra['best']", mesh="cp=2", public=("B95",))
class ForgetsItsBest(Trainer):
    """The best loss is kept for this process, and a load begins with none."""

    def _step(self) -> float:
        loss = super()._step()
        best = self.extra.get("best", loss)
        assert isinstance(best, float)
        self.extra["best"] = min(best, loss)
        return loss

    def load(self, path: Path) -> None:
        super().load(path)
        self.extra = {}


@plant(Reference, rule="SAVE-12", subject="checkpoint", mesh="cp=2")
class WritesOnInTheFile(Trainer):
    """What is logged after a save goes to the end of the file that was written last."""

    _last: Path | None = None

    def save(self, path: Path) -> None:
        super().save(path)
        self._last = path

    def _step(self) -> float:
        loss = super()._step()
        if self._last is not None and self.rank == 0:
            with self._last.open("ab") as file:
                file.write(f"{loss}\n".encode())
        return loss
