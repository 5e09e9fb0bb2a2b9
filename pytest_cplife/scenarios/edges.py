"""Values at the edges of a dtype: put into the live weights, saved, and loaded back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.scenarios.crash_kinds import attempt
from pytest_cplife.scenarios.order import Stage

EDGES = "edges"
"""The moment, and the file, of weights that hold edge values."""
LOADED = "edges loaded"


def through_a_file(stage: Stage, run: TrainingRun) -> None:
    """Overwrite the weights, save, and load where the run may load again.

    To be called last: no training comes after it. A trainer may have its reasons to refuse such
    weights; what is then missing counts as not offered.
    """
    put(run, edge_values)
    stage.recorder.moment(EDGES, run)
    path = stage.order.output.with_name(EDGES)
    with stage.recorder.phase("save again"):
        refused = attempt(lambda: run.save(path))
    if refused or not path.exists():
        why = refused or "nothing is written"
        stage.recorder.absent(f"weights with edge values are not saved ({why})", EDGES, LOADED)
        return
    if stage.rank.rank == 0:
        with stage.recorder.phase("read"):
            stage.file(EDGES, path, stage.adapter.read_checkpoint(path))
    if not stage.adapter.live_load:
        stage.recorder.absent("the run loads before its first step only", LOADED)
        return
    put(run, torch.zeros)
    with stage.recorder.phase("load"):
        refused = attempt(lambda: _load(run, path))
    if refused:
        stage.recorder.absent(f"weights with edge values are not loaded ({refused})", LOADED)
    else:
        stage.recorder.moment(LOADED, run)


def _load(run: TrainingRun, path: Path) -> None:
    run.load(path)
    run.ready()


def edge_values(count: int, dtype: torch.dtype) -> Tensor:
    """Finite numbers, over and over: a trainer may well refuse to save others."""
    info = torch.finfo(dtype)
    subnormal = info.tiny * info.eps
    some = [-0.0, subnormal, info.max, -subnormal, info.tiny, info.min, 1.0 + info.eps]
    edges = torch.tensor(some, dtype=torch.float64).to(dtype)
    return edges.repeat(-(-count // len(some)))[:count]


def put(run: TrainingRun, values: Callable[..., Tensor]) -> None:
    """Overwrite each rank's part of each weight in place; replicas get the same."""
    with torch.no_grad():
        for parameter in run.model.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
            local = torch.view_as_real(local) if local.is_complex() else local
            if local.is_floating_point() and local.device.type != "meta":
                new = values(local.numel(), dtype=local.dtype)
                local.copy_(new.view(local.shape))
