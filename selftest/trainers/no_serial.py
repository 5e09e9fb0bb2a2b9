"""A trainer that exists only distributed: its serial run is not offered."""

from __future__ import annotations

from pytest_cplife.selftest.trainers import fsdp2

from pytest_cplife import RankContext, TrainingRun


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")

    def start_serial(self, ctx: RankContext) -> TrainingRun:
        raise NotImplementedError("this trainer has no serial form")
