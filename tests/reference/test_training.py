"""The trainer on a mesh is the serial trainer: losses, replicas, stop-and-go, other meshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from .ranks import (
    MESHES,
    differences,
    full_state,
    local_state,
    run_ranks,
    run_serial,
    seed_everything,
    trainer,
    world_size,
)


def serial_steps(steps: int, path: Path) -> tuple[list[float], dict[str, Tensor]]:
    run = trainer("", dropout=False)
    losses = run.train(steps)
    run.save(path)
    return losses, full_state(run)


def parity(spec: str, steps: int, path: Path) -> Any:
    run = trainer(spec, dropout=False)
    losses = run.train(steps)
    reached = full_state(run)
    fresh = trainer(spec, dropout=False)
    fresh.load(path)
    return losses, reached, full_state(fresh), fresh.predict(), fresh.train(2)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("serial") / "at6.pt"
    losses, state = run_serial(serial_steps, 6, path)
    return path, losses, state


@pytest.mark.parametrize("spec", MESHES)
def test_a_mesh_trains_like_the_serial_run_and_loads_its_file(serial: Any, spec: str) -> None:
    path, losses, state = serial
    results = run_ranks(world_size(spec), parity, spec, 6, path)
    for got, reached, loaded, predicted, _ in results:
        assert got == pytest.approx(losses, rel=1e-5)
        assert differences(loaded, state) == []
        for name, value in state.items():
            torch.testing.assert_close(reached[name], value, rtol=1e-3, atol=1e-4, msg=name)
        assert torch.equal(predicted, results[0][3])
        assert got == results[0][0]
        assert differences(reached, results[0][1]) == []
    assert len({tuple(result[4]) for result in results}) == 1


def save_midway(spec: str, path: Path, accumulation: int) -> Any:
    run = trainer(spec, accumulation=accumulation)
    run.train(3)
    before = local_state(run)
    run.save(path)
    unchanged = differences(before, local_state(run))
    seed_everything(1000 + dist.get_rank())
    losses = run.train(5)
    replicas = []
    for name, parameter in run.model.named_parameters():
        assert isinstance(parameter, DTensor)
        if all(placement.is_replicate() for placement in parameter.placements):
            mine = parameter.to_local().detach()
            first = mine.clone()
            dist.broadcast(first, 0)
            if not torch.equal(mine, first):
                replicas.append(name)
    return unchanged, losses, local_state(run), replicas, run.predict()


def resume_midway(spec: str, path: Path, accumulation: int) -> Any:
    run = trainer(spec, accumulation=accumulation)
    run.train(1)
    run.load(path)
    assert (run.global_step, run.epoch, run.position) == (3, 0, 3)
    seed_everything(1000 + dist.get_rank())
    return run.train(5), local_state(run), run.predict(), (run.global_step, run.epoch)


@pytest.mark.parametrize("spec", MESHES)
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(tmp_path: Path, spec: str) -> None:
    path = tmp_path / "at3.pt"
    accumulation = 2 if spec in ("cp=2", "fsdp=2,tp=2") else 1
    whole = run_ranks(world_size(spec), save_midway, spec, path, accumulation)
    resumed = run_ranks(world_size(spec), resume_midway, spec, path, accumulation)
    for one, two in zip(whole, resumed, strict=True):
        unchanged, losses, state, replicas, predicted = one
        assert unchanged == []
        assert replicas == []
        assert two[0] == losses == whole[0][1]
        assert differences(state, two[1]) == []
        assert torch.equal(predicted, two[2])
        assert two[3] == (8, 2)
