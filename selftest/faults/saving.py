"""Faults of the plain checkpoint: SAVE."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.trainer import Trainer
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import ddp, fsdp2
from torch.distributed.tensor import DTensor


@plant(fsdp2.Adapter, rule="SAVE-01", subject="checkpoint", mesh="fsdp=2", public=("B132",))
class NoBarrier(fsdp2.Fsdp2Run):
    """Ranks that do not write return before the file is there."""

    def save(self, path: Path) -> None:
        if self.ctx.rank == 0:
            self.barrier = lambda: None  # type: ignore[method-assign]
        self.export_model(), self.export_optimizers()
        if self.ctx.rank == 0:
            time.sleep(0.7)
            path.write_bytes(b"")


@plant(fsdp2.Adapter, rule="SAVE-01", subject="save (saving)", mesh="fsdp=2")
class GathersOnRankZero(fsdp2.Fsdp2Run):
    """Only the rank that writes asks for the full tensors; it waits for the others."""

    def save(self, path: Path) -> None:
        if self.ctx.rank == 1:
            raise FileNotFoundError(f"no folder {path.parent.name}")
        super().save(path)


@plant(fsdp2.Adapter, rule="SAVE-02", subject="model['embed.weight']", mesh="fsdp=2")
class SavesDTensors(fsdp2.Fsdp2Run):
    """The state dict is pickled as it is."""

    def export_model(self) -> dict[str, Any]:
        return self.model.state_dict()


@plant(
    Reference,
    rule="SAVE-02",
    subject="extra['deep'][0]['moment']",
    mesh="fsdp=2",
)
class DTensorInAnObject(Trainer):
    """The conversion to plain tensors stops at the model."""

    def save(self, path: Path) -> None:
        super().save(path)
        if self.rank == 0:
            payload = torch.load(path, weights_only=False)
            parameter = next(iter(self.model.parameters()))
            payload["extra"] = {"deep": [{"moment": parameter.detach()}]}
            torch.save(payload, path)
        dist.barrier()


@plant(fsdp2.Adapter, rule="SAVE-03", subject="read saved (files)", mesh="fsdp=2")
class NamelessFile(fsdp2.Fsdp2Run):
    """The weights are a list, whose order only the program knows."""

    def export_model(self) -> Any:
        return list(super().export_model().values())


@plant(ddp.Adapter, rule="SAVE-04", subject="module.*", mesh="dp=2", public=("B45",))
class WrapperPrefix(ddp.DdpRun):
    """The wrapper's prefix stays in the file."""

    def export_model(self) -> dict[str, Any]:
        return dict(self.network.state_dict())


@plant(
    fsdp2.Adapter,
    rule="SAVE-04",
    subject="blocks.1._orig_mod.up.weight",
    mesh="fsdp=2",
    public=("B43",),
)
class CompileNameOfOneBlock(fsdp2.Fsdp2Run):
    """The name cleaning misses one level of wrapping."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        return {name.replace("blocks.1.", "blocks.1._orig_mod."): v for name, v in saved.items()}


@plant(fsdp2.Adapter, rule="SAVE-04", subject="frequency", mesh="fsdp=2", public=("B56",))
class ParametersOnly(fsdp2.Fsdp2Run):
    """Only parameters are saved; buffers are not."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        return {k: v for k, v in saved.items() if k not in ("frequency", "seen")}


@plant(
    fsdp2.Adapter,
    rule="SAVE-05",
    subject="embed.weight",
    mesh="fsdp=2",
    public=("B99",),
    likely="the shape of rank 0's shard",
)
class SavesOneShard(fsdp2.Fsdp2Run):
    """The rank that writes saves what it has."""

    def export_model(self) -> dict[str, Any]:
        state = self.model.state_dict()
        return {k: v.to_local() if isinstance(v, DTensor) else v for k, v in state.items()}


@plant(
    fsdp2.Adapter,
    rule="SAVE-05",
    subject="norm.weight",
    mesh="fsdp=2",
    public=("B146",),
    likely="rounded to bfloat16",
)
class RoundedFile(fsdp2.Fsdp2Run):
    """Weights take a way through bfloat16 to the file."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        if "norm.weight" in saved:
            saved["norm.weight"] = saved["norm.weight"].bfloat16().float()
        return saved


@plant(
    fsdp2.Adapter,
    rule="SAVE-05",
    subject="blocks.0.up.weight",
    mesh="fsdp=2,tp=2",
    public=("B26",),
)
class PermutedRows(fsdp2.Fsdp2Run):
    """Rows are gathered in the order of the mesh, but were cut by tp first and then by fsdp."""

    def export_model(self) -> dict[str, Any]:
        saved = super().export_model()
        parts: list[Any] = [None] * self.ctx.world_size
        dist.all_gather_object(parts, self.model.blocks[0].up.weight.to_local().detach())
        if saved:
            saved["blocks.0.up.weight"] = torch.cat(parts)
        return saved


@plant(fsdp2.Adapter, rule="SAVE-05", subject="embed.weight", mesh="fsdp=2", public=("B130",))
class StaleCopy(fsdp2.Fsdp2Run):
    """The copy for the writer was staged a step too early."""

    _staged: dict[str, Any] | None = None

    def update(self) -> None:
        self._staged = super().export_model()
        super().update()

    def export_model(self) -> dict[str, Any]:
        return super().export_model() if self._staged is None else self._staged


@plant(
    Reference,
    rule="SAVE-05",
    subject="embedding.weight",
    mesh="cp=2",
    public=("B104", "B105"),
    likely="are the averages",
)
class SavesTheAverage(Trainer):
    """The file is written while the averaged weights are swapped in."""

    def save(self, path: Path) -> None:
        with self.ema.weights():
            self.ema.training_weights = contextlib.nullcontext  # type: ignore[method-assign]
            super().save(path)
        del self.ema.training_weights


@plant(
    fsdp2.Adapter,
    rule="SAVE-06",
    subject="embed.weight[exp_avg]",
    mesh="fsdp=2",
    public=("B25",),
    likely="the shape of rank 0's shard",
)
class OneShardOfMoments(fsdp2.Fsdp2Run):
    """Of the optimizer's state only rank 0's shards reach the file."""

    def export_optimizers(self) -> list[Any]:
        saved = super().export_optimizers()
        names = dict(self.model.named_parameters())
        for name, entries in saved[0].get("state", {}).items():
            state = self.optimizers[0].state[names[name]]
            entries |= {
                key: value.to_local() for key, value in state.items() if isinstance(value, DTensor)
            }
        return saved


@plant(fsdp2.Adapter, rule="SAVE-06", subject="gain[exp_avg_sq]", mesh="fsdp=2", public=("B19",))
class DropsAnEntry(fsdp2.Fsdp2Run):
    """The exporter knows one entry less than the optimizer has."""

    def export_optimizers(self) -> list[Any]:
        saved = super().export_optimizers()
        for entries in saved[0].get("state", {}).values():
            entries.pop("exp_avg_sq", None)
        return saved
