"""A trainer that leaves random streams alone at a load, and says so."""

from __future__ import annotations

from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import LoopRun


class NoStreams(LoopRun):
    def seed(self) -> None:
        if self.global_step == 0:
            super().seed()


class Fsdp2Run(NoStreams, fsdp2.Fsdp2Run):
    pass


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    rng_policy = "none"
    run_class = Fsdp2Run
    serial_run = NoStreams
