"""Noise: what dropout modules draw on each rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.records import DROPPED, KEPT, UNTOLD, NoiseRecord

_FIRST = 4096
"""Elements of a mask that are noted one by one."""


@contextmanager
def listening(run: TrainingRun) -> Iterator[list[NoiseRecord]]:
    """Inside the block the list grows by one record for each call of a dropout module."""
    heard: list[NoiseRecord] = []

    def hook(name: str) -> Any:
        def after(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args and isinstance(args[0], torch.Tensor) and isinstance(output, torch.Tensor):
                heard.append(_record(name, args[0], output))

        return after

    handles = [
        module.register_forward_hook(hook(name))
        for name, module in run.model.named_modules()
        if "dropout" in type(module).__name__.lower()
    ]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _record(name: str, given: torch.Tensor, got: torch.Tensor) -> NoiseRecord:
    given, got = (t.to_local() if isinstance(t, DTensor) else t for t in (given, got))
    dropped = (got == 0) & (given != 0)
    first = torch.where(dropped, DROPPED, torch.where(given != 0, KEPT, UNTOLD))
    return NoiseRecord(
        module=name,
        shape=tuple(given.shape),
        given=_digest(given.detach().contiguous().flatten().view(torch.uint8)),
        mask=_digest(dropped),
        dropped=int(dropped.sum()),
        first=bytes(first.flatten()[:_FIRST].tolist()),
    )


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(tensor.cpu().numpy().tobytes(), digest_size=8).hexdigest()
