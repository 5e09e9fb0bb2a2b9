"""A trainer whose rank 0 fails alone: the others wait for it until the job is over."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from pytest_cplife.selftest.trainers import fsdp2


class Run(fsdp2.Fsdp2Run):
    def save(self, path: Path) -> None:
        payload = {
            "model": self.export_model(),
            "optimizers": self.export_optimizers(),
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            **self.counters(),
        }
        if self.ctx.rank == 0:
            torch.save(payload, path)
        dist.barrier()


class Adapter(fsdp2.Adapter):
    run_class = Run
