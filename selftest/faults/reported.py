"""Faults out of public reports that stand by themselves: one mechanism, one report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2, sgd, sharded, tp_only
from pytest_cplife.selftest.trainers.model import TinyNet
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
    set_optimizer_state_dict,
)


@plant(fsdp2.Adapter, rule="LOAD-16", subject="scaler.growth", mesh="fsdp=2", public=("B05",))
class ScalerStepsAtLoad(fsdp2.Fsdp2Run):
    """The hidden step of a load goes through the wrapper that drives the loss scaler as well."""

    growth = 0

    def update(self) -> None:
        super().update()
        self.growth += 1

    def named_extra_state(self) -> Mapping[str, object]:
        return {"scaler": {"growth": self.growth}}

    def export_extra(self) -> dict[str, Any]:
        return super().export_extra() | {"scaler": self.growth}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        super().restore_extra(payload)
        self.growth = payload["scaler"] + 1


@plant(sharded.Adapter, rule="DCP-04", subject="owned", mesh="fsdp=2", public=("B36",))
class CommonFromTheFirst(sharded.Sharded):
    """What each rank knows of its own modules has one key, under which torch keeps the first's."""

    owned = ""

    def named_extra_state(self) -> Mapping[str, object]:
        return {"owned": self.owned or f"module {self.ctx.rank}"}

    def sharded_tensors(self) -> dict[str, Any]:
        return {**super().sharded_tensors(), **self.named_extra_state()}

    def template(self, layout: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
        return super().template(layout) | {"owned": ""}

    def put(self, tensors: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        super().put(tensors, rest)
        self.owned = tensors["owned"]


@plant(fsdp2.Adapter, rule="SAVE-05", subject="shift", mesh="fsdp=2", public=("B50",))
class AliasesByPointer(fsdp2.Fsdp2Run):
    """Tensors whose storage was freed all have the pointer 0, and are taken for one another."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        return saved and saved | {"shift": saved["norm.weight"]}


@plant(
    sharded.Adapter,
    rule="DCP-01",
    subject="save sharded (sharding)",
    mesh="fsdp=2",
    public=("B140",),
)
class WritesBeforeThereIsAFolder(sharded.Sharded):
    """The first rank makes the folder, and the others write into it at once."""

    def write_tensors(self, folder: Path) -> None:
        if self.ctx.rank == 0:
            time.sleep(0.3)
            folder.mkdir()
        else:
            (folder / f"rank-{self.ctx.rank}.txt").write_text("of this rank")
        super().write_tensors(folder)


@plant(fsdp2.Adapter, rule="SAVE-13", subject="head.bias", mesh="fsdp=2", public=("B55",))
class FlatFile(fsdp2.Fsdp2Run):
    """The file's tensors are views of one buffer, which later tools take for tied."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        floats = {k: v for k, v in saved.items() if v.dtype == torch.float32}
        if floats:
            flat = torch.cat([value.flatten() for value in floats.values()])
            parts = flat.split([value.numel() for value in floats.values()])
            pairs = zip(floats.items(), parts, strict=True)
            saved |= {name: part.view_as(value) for (name, value), part in pairs}
        return saved


@plant(tp_only.Adapter, rule="GRAD-01", subject="train (uninterrupted)", mesh="tp=2")
class LoopsOverAllAtOnce(tp_only.Adapter):
    """The optimizer loops over all at once, as it does on GPUs, and refuses two kinds of them."""

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(model.parameters(), lr=0.02, foreach=True)]


@plant(
    fsdp2.Adapter,
    rule="LOAD-01",
    subject="load (resumed)",
    mesh="fsdp=2,tp=2",
    public=("B31",),
)
class CutsWithoutOffsets(fsdp2.Fsdp2Run):
    """Each rank cuts its part out of a whole that does not divide, which torch cannot over two."""

    def restore_model(self, saved: dict[str, Any]) -> None:
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, dict(saved), options=options)


@plant(sgd.Adapter, rule="LOAD-01", subject="load (resumed)", mesh="fsdp=2")
class ExpectsState(fsdp2.Fsdp2Run):
    """torch's setter is asked also where the optimizer keeps nothing, and finds no device."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            options = StateDictOptions(full_state_dict=True)
            set_optimizer_state_dict(self.model, optimizer, dict(state), options=options)
