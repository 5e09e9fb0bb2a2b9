"""Gradients accumulated over micro-batches, reduced once at the last of them."""

from __future__ import annotations

import torch
from pytest_cplife.selftest.trainers import ddp, fsdp2
from pytest_cplife.selftest.trainers.data import Batch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule


class Fsdp2Run(fsdp2.Fsdp2Run):
    micro_batches = 2

    def forward_backward(self, local: Batch) -> Tensor:
        assert isinstance(self.model, FSDPModule)
        total = torch.zeros((), device=self.ctx.device)
        for index in range(self.micro_batches):
            self.model.set_requires_gradient_sync(index == self.micro_batches - 1)
            loss = self.loss(local.part(index, self.micro_batches)) / self.micro_batches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total


class DdpRun(ddp.DdpRun):
    micro_batches = 2

    def forward_backward(self, local: Batch) -> Tensor:
        halves = [local.part(index, 2) for index in range(2)]
        with self.network.no_sync():
            first = self.loss(halves[0]) / 2
            first.backward()  # type: ignore[no-untyped-call]
        last = self.loss(halves[1]) / 2
        last.backward()  # type: ignore[no-untyped-call]
        return first.detach() + last.detach()


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2")
    run_class = Fsdp2Run


class Ddp(ddp.Adapter):
    meshes = ("dp=1", "dp=2")
    run_class = DdpRun
