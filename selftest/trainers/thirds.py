"""FSDP2 with plain and distributed checkpoints on two ranks and on three.

Neither number divides the other. The batch is one that both divide, as `train` promises; of the
parameters many are of a size that neither does.
"""

from __future__ import annotations

from pytest_cplife.selftest.trainers import sharded
from pytest_cplife.selftest.trainers.data import Batch, global_batch
from pytest_cplife.selftest.trainers.loop import LoopRun

BATCH = 12


class Twelve(LoopRun):
    def next_batch(self) -> Batch:
        return global_batch(self.data_step(), BATCH)


class Sharded(Twelve, sharded.Sharded):
    pass


class Adapter(sharded.Adapter):
    meshes = ("fsdp=2", "fsdp=3")
    run_class = Sharded
    serial_run = Twelve
