"""What only one rank runs into, or has, is told to all: no rank waits and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.agreement import CheckpointError
from pytest_cplife.reference_impl.plain import to_plain
from pytest_cplife.reference_impl.sharded import DCP, AsyncSaver
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from .ranks import run_ranks


class Loader:
    """A data loader whose position one rank cannot tell."""

    def state_dict(self) -> dict[str, int]:
        if dist.get_rank() == 1:
            raise ValueError("the worker is gone")
        return {"position": 1}


def saved_async(state: dict[str, Any], path: Path) -> None:
    saver = AsyncSaver()
    try:
        saver.save(state, path)
    finally:
        saver.close()


def told(method: Callable[[dict[str, Any], Path], None], path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        method({"loader": Loader()}, path)
    dist.barrier()  # the next exchange finds everybody in step
    return str(caught.value)


@pytest.mark.parametrize(
    ("method", "doing"), [(DCP.save, "save"), (saved_async, "save"), (DCP.load, "load")]
)
def test_state_that_one_rank_cannot_give(
    method: Callable[[dict[str, Any], Path], None], doing: str, tmp_path: Path
) -> None:
    path = tmp_path / "saved"
    DCP.save({"loader": {"position": 0}}, path)
    message = f"cannot {doing} {path}: rank 1 failed: ValueError: the worker is gone"
    assert run_ranks(2, told, method, path) == [message] * 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def different(more: dict[str, Tensor], path: Path) -> str:
    state = {"weights": {"a": torch.ones(2), **(more if dist.get_rank() == 1 else {})}}
    with pytest.raises(CheckpointError) as caught:
        DCP.save(state, path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"b": torch.ones(2)}, "rank 1 has 'weights.b', which rank 0 has not"),
        ({"a": torch.ones(3)}, r"'weights.a' is torch.float32 (3,) on rank 1, torch.float32 (2,)"),
        ({"a": torch.ones(2).int()}, "'weights.a' is torch.int32 (2,) on rank 1"),
    ],
)
def test_ranks_that_have_not_the_same_tensors(
    more: dict[str, Tensor], message: str, tmp_path: Path
) -> None:
    for answer in run_ranks(2, different, more, tmp_path / "saved"):
        assert message in answer
    assert list(tmp_path.iterdir()) == []


def elsewhere(placement: Placement, path: Path) -> tuple[Tensor | None, Tensor]:
    mesh = DeviceMesh("cpu", [1])
    values = torch.arange(4.0)
    state: dict[str, Any] = {"t": distribute_tensor(values, mesh, [placement])}
    DCP.save(state, path)
    state["t"] = distribute_tensor(torch.zeros(4), mesh, [placement])
    DCP.load(state, path)
    return to_plain(state["t"], only=0), state["t"].to_local()


@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
def test_a_mesh_that_rank_0_is_not_on(placement: Placement, tmp_path: Path) -> None:
    (full, outside), (nothing, local) = run_ranks(2, elsewhere, placement, tmp_path / "saved")
    assert full is not None and nothing is None
    assert full.tolist() == local.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert outside.numel() == 0
