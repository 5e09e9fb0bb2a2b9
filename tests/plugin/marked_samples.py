"""Tests with the marker ``cplife``, each ending in a way of its own.

`test_fixtures.py` copies this file to ``test_marked.py`` and reads what pytest makes of it.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

on_two = pytest.mark.cplife(mesh="cp=2")


@pytest.fixture
def sizes() -> list[int]:
    return [2, 3]


@pytest.fixture
def passed_on(cplife_mesh: DeviceMesh) -> dict[str, DeviceMesh]:
    return {"mesh": cplife_mesh}


@pytest.mark.cplife(mesh="dp=2,cp=2")
@pytest.mark.parametrize("n", [8, 16])
def test_body(
    cplife_mesh: DeviceMesh, passed_on: dict[str, DeviceMesh], n: int, tmp_path: Path
) -> None:
    assert passed_on["mesh"] is cplife_mesh
    assert cplife_mesh.mesh_dim_names == ("dp", "cp")
    tensor = distribute_tensor(torch.arange(n), cplife_mesh, [Shard(0), Shard(0)])
    assert tensor.to_local().numel() == n // 4
    assert torch.equal(tensor.full_tensor(), torch.arange(n))
    (tmp_path / f"rank{dist.get_rank()}").touch()
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 4


class TestMethods:
    pytestmark = on_two

    def setup_method(self) -> None:
        self.prepared = ["set up"]

    def test_each_rank_has_its_instance(self) -> None:
        self.prepared.append(f"rank {dist.get_rank()}")
        dist.barrier()
        assert self.prepared == ["set up", f"rank {dist.get_rank()}"]


@on_two
def test_fails(sizes: list[int]) -> None:
    print("printed by", dist.get_rank())
    logging.getLogger("mine").warning("logged by %d", dist.get_rank())
    if dist.get_rank() == 1:
        assert [*sizes, dist.get_rank()] == [2, 3, 4]
    dist.barrier()


@on_two
def test_after_a_failure() -> None:
    dist.barrier()


@on_two
def test_fails_everywhere() -> None:
    pytest.fail("on purpose")


@on_two
def test_all_skip() -> None:
    pytest.importorskip("no_such_module")


@on_two
def test_some_skip() -> None:
    if dist.get_rank() == 1:
        pytest.skip("odd")


@on_two
def test_some_skip_and_others_wait() -> None:
    if dist.get_rank() == 1:
        pytest.skip("odd")
    dist.barrier()


@on_two
def test_one_returns_early() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


@pytest.mark.cplife(mesh="cp=2", timeout=1)
def test_times_out() -> None:
    if dist.get_rank() == 1:
        for _ in range(6000):
            time.sleep(0.01)


@on_two
def test_all_xfail() -> None:
    pytest.xfail("some day")


@on_two
def test_some_xfail() -> None:
    if dist.get_rank() == 0:
        pytest.xfail("some day")


@on_two
@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_expected_error() -> None:
    _ = 1 / 0


@on_two
def test_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "linesep", "patched")
    assert os.linesep == "patched"


@on_two
def test_sees_no_patch() -> None:
    assert os.linesep != "patched"


@on_two
def test_not_picklable(request: pytest.FixtureRequest) -> None:
    """Passes where ranks are threads."""


@pytest.mark.cplife(mesh="cp")
def test_bad_mesh() -> None: ...


@pytest.mark.cplife(mash="cp=2")
def test_bad_marker() -> None: ...


@pytest.mark.cplife(mesh="cp=4")
def test_too_large() -> None: ...


def test_not_marked(cplife_mesh: DeviceMesh) -> None: ...


def add(rank: Any, number: int) -> int:
    assert rank.rank + number < 4
    return int(rank.rank) + number


def test_world(cplife_world: Any) -> None:
    assert cplife_world(2).run(add, 1) == [1, 2]


def test_world_fails(cplife_world: Any) -> None:
    cplife_world(2).run(add, 3)
