"""FSDP2 with an average of its own: shards of weights, averaged buffers, integers copied.

Two adapters that differ in when the average begins: in the course of the first stretch, from the
initial weights; or after the save, from the weights that its first update finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from pytest_cplife.selftest.trainers.named_state import gathered, place_like
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_cplife import EmaSpec

SPEC = EmaSpec(0.8, start_step=2, float_buffers="average", integer_buffers="copy")
LATER = EmaSpec(
    0.8, init="first_update", start_step=4, float_buffers="average", integer_buffers="copy"
)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class AveragedRun(LoopRun):
    """Adds an average to any run of this package."""

    spec = SPEC

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.updates = 0
        self.backup: dict[str, Tensor] | None = None
        # The live weights are made outside of inference mode, and so is what is updated with them.
        self.shadow = {name: value.detach().clone() for name, value in self.averaged()}
        self.ema = self.shadow

    def averaged(self) -> Iterator[tuple[str, Tensor]]:
        """What has an average: parameters, one name per tied pair, and persistent buffers."""
        yield from self.model.named_parameters()
        saved = self.model.state_dict()
        yield from ((name, value) for name, value in self.model.named_buffers() if name in saved)

    def update(self) -> None:
        super().update()
        if self.global_step + 1 >= self.spec.start_step:
            self.update_average()

    @torch.no_grad()
    def update_average(self) -> None:
        self.updates += 1
        begins = self.updates == 1 and self.spec.init == "first_update"
        for name, value in self.averaged():
            mine, theirs = local(self.shadow[name]), local(value)
            if begins or not theirs.is_floating_point():
                mine.copy_(theirs)
            else:
                assert isinstance(self.spec.decay, float)
                mine.lerp_(theirs, 1 - self.spec.decay)

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        self.swap_in()
        try:
            yield
        finally:
            self.swap_out()

    def swap_in(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.backup = {name: local(value).clone() for name, value in self.weights()}
            for name, value in self.weights():
                local(value).copy_(local(self.shadow[name]))

    def swap_out(self) -> None:
        assert self.backup is not None
        with torch.inference_mode(False), torch.no_grad():
            for name, value in self.weights():
                local(value).copy_(self.backup[name])
        self.backup = None

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()

    def save(self, path: Path) -> None:
        swapped = self.backup is not None
        if swapped:
            self.swap_out()
        super().save(path)
        if swapped:
            self.swap_in()

    def export_extra(self) -> dict[str, Any]:
        return {**super().export_extra(), "ema": {"shadow": self.export_shadow()} | self.progress()}

    def export_shadow(self) -> dict[str, Tensor]:
        return gathered(self.shadow, keep=self.ctx.rank == 0)

    def progress(self) -> dict[str, int]:
        return {"updates": self.updates}

    @torch.no_grad()
    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        super().restore_extra(payload)
        saved = payload["ema"]["shadow"]
        for name, value in self.averaged():
            # An average that the file does not have begins with the loaded weight.
            found = place_like(saved[name], value) if name in saved else value
            local(self.shadow[name]).copy_(local(found))
        self.updates = payload["ema"]["updates"]


class Fsdp2Run(AveragedRun, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2", "fsdp=2,tp=2")
    ema_spec = SPEC
    run_class: type[fsdp2.Fsdp2Run] = Fsdp2Run
    serial_run = AveragedRun


class LaterRun(Fsdp2Run):
    spec = LATER


class SerialLaterRun(AveragedRun):
    spec = LATER


class Later(Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    ema_spec = LATER
    run_class = LaterRun
    serial_run = SerialLaterRun
