"""The count of memory that tensors take, against numbers known beforehand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cplife.evidence import weighing as weighing_module
from pytest_cplife.evidence.weighing import weighing

BYTES = 4000
"""Of a tensor of 1000 float32."""


def made(count: int) -> list[torch.Tensor]:
    return [torch.ones(1000) for _ in range(count)]


def test_what_is_held_at_once_is_counted_once() -> None:
    with weighing() as weight:
        kept = made(3)
        views = [tensor.view(10, 100)[2:] for tensor in kept]
        for tensor in kept:
            tensor.mul_(2.0)
    assert weight.peak == 3 * BYTES
    assert len(views) == 3


def test_what_is_freed_makes_room() -> None:
    with weighing() as weight:
        for _ in range(5):
            tensor = torch.ones(1000)
            del tensor
    assert weight.peak == BYTES


def test_a_view_holds_its_storage() -> None:
    with weighing() as weight:
        views = [tensor[:1] for tensor in made(2)]
        more = torch.ones(1000)
    assert weight.peak == 3 * BYTES
    assert len(views) + len(more) == 1002


def test_what_was_there_before_does_not_count() -> None:
    old = made(4)
    with weighing() as weight:
        new = [tensor.view(-1) for tensor in old]
        old[0].add_(1.0)
        detached = old[1].detach()
    assert weight.peak == 0
    assert len(new) + len(detached) == 1004


def test_integers_are_counted_apart() -> None:
    with weighing() as weight:
        state = torch.zeros(5056, dtype=torch.uint8)
        ids = torch.zeros(10, dtype=torch.int64)
    assert (weight.peak, weight.whole_numbers) == (0, 5056 + 80)
    assert len(state) + len(ids) == 5066


@pytest.mark.parametrize(("mapped", "peak"), [(False, 4 * BYTES), (True, 0)])
def test_a_mapped_file_takes_no_memory(tmp_path: Path, mapped: bool, peak: int) -> None:
    path = tmp_path / "file.pt"
    torch.save({str(n): tensor for n, tensor in enumerate(made(4))}, path)
    with weighing() as weight:
        payload: dict[str, Any] = torch.load(path, mmap=mapped)
    assert weight.peak == peak
    assert len(payload) == 4


def test_what_is_taken_out_of_a_mapped_file_does(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({str(n): tensor for n, tensor in enumerate(made(4))}, path)
    with weighing() as weight:
        payload = torch.load(path, mmap=True)
        mine = payload["0"][:250].clone()
    assert weight.peak == BYTES // 4
    assert len(mine) == 250


def test_memory_made_by_an_optimizer_is_seen() -> None:
    module = torch.nn.Linear(10, 10)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    module(torch.ones(2, 10)).sum().backward()
    with weighing() as weight:
        optimizer.step()
    assert weight.peak >= 2 * 4 * 110


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_a_file_in_a_folder_in_memory_is_a_file_and_torchs_shared_memory_is_none() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "file"
        torch.save({"a": torch.ones(1000)}, path)
        with weighing() as weight:
            mapped = torch.load(path, mmap=True)["a"]
        assert weight.peak == 0 and mapped.sum() == 1000
    assert not weighing_module._is_mapped(torch.ones(1000).share_memory_().untyped_storage())
