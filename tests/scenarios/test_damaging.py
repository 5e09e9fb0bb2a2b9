"""Damages to a sharded checkpoint: each is what it says, and what torch itself makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from pytest_cplife.evidence.layout import tiling_problem, view_layout
from pytest_cplife.scenarios.damaging import CODE_IN_METADATA, CODE_IN_OBJECT, DAMAGES, damaged_copy
from pytest_cplife.scenarios.editing import NothingToEdit
from pytest_cplife.scenarios.marking import forget, ran

SIZES = {"model.large": (40, 5), "model.small": (3,)}


def state(value: float = 0.0) -> dict[str, Any]:
    return {name: torch.full(size, value) for name, size in SIZES.items()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    dcp.save({**state(1.0), "note": "of the run"}, checkpoint_id=path, no_dist=True)
    return path


@pytest.fixture
def offer(source: Path, tmp_path: Path) -> Callable[[str], tuple[str, dict[str, Any]]]:
    """Damage a copy and let torch load it: its exception, "" for none, and what it read."""

    def damage(name: str) -> tuple[str, dict[str, Any]]:
        copy = tmp_path / "copy"
        damaged_copy(source, copy, name)
        read = {**state(), "note": ""}
        try:
            dcp.load(read, checkpoint_id=copy, no_dist=True)
        except BaseException as error:
            return type(error).__name__, read
        return "", read

    return damage


@pytest.mark.parametrize(
    "name", ["a missing rank file", "a truncated rank file", "a missing tensor"]
)
def test_what_torch_refuses(offer: Callable[[str], tuple[str, Any]], name: str) -> None:
    assert offer(name)[0]


@pytest.mark.parametrize(
    "name", [name for name in DAMAGES if not name.startswith(("a missing", "a truncated"))]
)
def test_what_torch_takes_without_a_word(
    offer: Callable[[str], tuple[str, Any]], name: str
) -> None:
    """So that what refuses one of these is the trainer."""
    refusal, read = offer(name)
    assert refusal == ""
    assert read["note"] == "of the run"


def test_a_hole_leaves_what_was_there(offer: Callable[[str], tuple[str, Any]]) -> None:
    _, read = offer("a hole in the metadata")
    assert read["model.large"].eq(0).all() and read["model.small"].eq(1).all()


def test_a_hole_is_one(source: Path, tmp_path: Path) -> None:
    touched = damaged_copy(source, tmp_path / "copy", "a hole in the metadata")
    assert touched == "model.large"
    assert tiling_problem(*view_layout(tmp_path / "copy").chunks[touched])


def test_a_wide_tensor_is_narrowed(offer: Callable[[str], tuple[str, Any]]) -> None:
    _, read = offer("a tensor of another dtype")
    assert read["model.large"].dtype is torch.float32
    assert read["model.large"].eq(torch.tensor(1 / 3)).all()


@pytest.mark.parametrize("name", [CODE_IN_METADATA, CODE_IN_OBJECT])
def test_code_runs_and_is_noted_once(offer: Callable[[str], tuple[str, Any]], name: str) -> None:
    forget(name)
    offer(name)
    assert ran(name)
    assert not ran(name)


def test_the_file_outside_is_what_is_read(
    offer: Callable[[str], tuple[str, Any]], source: Path, tmp_path: Path
) -> None:
    for file in source.glob("*.distcp"):
        assert file.exists()
    _, read = offer("a path to the outside")
    assert read["model.large"].eq(1).all()
    assert (tmp_path / "copy-outside.distcp").exists()


def test_the_source_stays_as_it_is(source: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    for number, name in enumerate(DAMAGES):
        damaged_copy(source, tmp_path / f"copy {number}", name)
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before


def test_where_there_is_nothing_to_damage(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    dcp.save(state(), checkpoint_id=source, no_dist=True)
    with pytest.raises(NothingToEdit, match="no objects beside its tensors"):
        damaged_copy(source, copy, CODE_IN_OBJECT)
    assert not copy.exists()
