"""What is done to copies of a file: a bit of a tensor, a byte at the end, the version it says."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.scenarios.crash_spoiled import SPOILS, _later_version, flip_a_bit
from pytest_cplife.scenarios.editing import NothingToEdit


def test_the_bit_is_one_of_a_tensor(tmp_path: Path) -> None:
    """In an archive of small tensors most of the file is headers, padding and the pickle."""
    path = tmp_path / "checkpoint"
    saved = {f"a name that is long {n}": torch.arange(n + 1.0) for n in range(40)}
    torch.save(saved, path)
    flip_a_bit(path)
    loaded = torch.load(path, weights_only=True)
    assert [name for name in saved if not loaded[name].equal(saved[name])] == list(saved)[-1:]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is not None


def test_any_other_file_is_flipped_in_its_middle(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(9))
    flip_a_bit(path)
    assert path.read_bytes() == bytes(4) + b"\x10" + bytes(4)


@pytest.mark.parametrize(
    "name", [name for name in SPOILS if "missing" in name or "nothing" in name]
)
def test_cuts_leave_the_beginning(name: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(range(100)))
    SPOILS[name](path)
    left = path.read_bytes()
    assert len(left) in (0, 50, 99)
    assert left == bytes(range(100))[: len(left)]


def later(payload: Any) -> str:
    return _later_version(CheckpointView(model={}, payload=payload), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"model": {}, "format_version": 3}, "format_version 103"),
        ({"version": "1.4.2"}, "version 101.0.0"),
        ({"checkpoint_version": 0}, "checkpoint_version 100"),
    ],
)
def test_the_version_is_raised(payload: dict[str, Any], told: str) -> None:
    assert later(payload) == told
    key = told.split()[0]
    assert str(payload[key]) == told.split()[1]


@pytest.mark.parametrize(
    "payload",
    [
        {"torch_version": "2.13.0"},
        {"version": None},
        {"version": True},
        {"model": {"version": 1}},
        [],
    ],
)
def test_what_is_no_version_of_the_file_is_left_alone(payload: Any) -> None:
    with pytest.raises(NothingToEdit):
        later(payload)
