"""Noise that is not dropout, on what the first block gets, and where it is drawn from.

Four adapters. `Adapter` derives a generator of its own from seed, part of the batch and step, anew
for each step. `Kept` makes one generator and goes on with it, so that its state is in the file, one
for each rank. `Fresh` makes one and seeds it anew at a load. `Global` draws from the global stream,
as most code does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun
from pytest_cplife.selftest.trainers.model import TinyNet, build_model
from torch import Tensor

SIZE = 0.1


class NoisyNet(TinyNet):
    """Has no dropout, and draws from `generator`, or from the global stream where that is None."""

    generator: torch.Generator | None = None

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.drop.p = 0.0  # type: ignore[union-attr]

    def embedded(self, inputs: Tensor) -> Tensor:
        hidden = super().embedded(inputs)
        if not self.training:
            return hidden
        noise = torch.randn(hidden.shape, generator=self.generator, device=hidden.device)
        return hidden + SIZE * noise


class OwnNoise(LoopRun):
    """Any run of this package on a `NoisyNet`; the global streams are left alone."""

    model: NoisyNet

    def seed(self) -> None:
        # Not the rank: ranks that share samples, under tensor parallelism, share their noise.
        words = np.random.SeedSequence([self.ctx.seed, self.part.index, self.global_step])
        (seed,) = words.generate_state(1, np.uint64).tolist()
        self.model.generator = torch.Generator(self.ctx.device).manual_seed(seed >> 1)

    def step(self) -> float:
        self.seed()
        return super().step()


class KeptNoise(OwnNoise):
    """One generator for the whole run, whose state is in the file, each rank's beside the others'.

    On another number of ranks they are made anew, as they are for the step at a start.
    """

    def step(self) -> float:
        return LoopRun.step(self)

    def export_extra(self) -> dict[str, Any]:
        assert self.model.generator is not None
        own = self.model.generator.get_state()
        if self.ctx.serial:
            return {"generators": [own]}
        states: list[Any] = [None] * self.ctx.world_size
        dist.all_gather_object(states, own)
        return {"generators": states}

    def restore_extra(self, payload: Mapping[str, Any]) -> None:
        assert self.model.generator is not None
        states = payload["generators"]
        if len(states) == self.ctx.world_size:
            self.model.generator.set_state(states[self.ctx.rank])


class FreshNoise(OwnNoise):
    """One generator for the whole run, which a load seeds by where the run stands.

    That is what the policy ``"offset"`` does with the global streams: a resumed run draws other
    noise than one that was never stopped, and always the same.
    """

    def step(self) -> float:
        return LoopRun.step(self)

    def load(self, path: Path) -> None:
        super().load(path)
        self.seed()


class OwnRun(OwnNoise, fsdp2.Fsdp2Run):
    pass


class FreshRun(FreshNoise, fsdp2.Fsdp2Run):
    pass


class KeptRun(KeptNoise, fsdp2.Fsdp2Run):
    pass


class Global(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")

    def build_serial_model(self) -> TinyNet:
        return build_model(NoisyNet)


class Adapter(Global):
    meshes = ("fsdp=1", "fsdp=2", "fsdp=2,tp=2")
    rng_policy = "none"
    run_class = OwnRun
    serial_run = OwnNoise


class Kept(Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    run_class = KeptRun
    serial_run = KeptNoise


class Fresh(Kept):
    rng_policy = "offset"
    run_class = FreshRun
    serial_run = FreshNoise
