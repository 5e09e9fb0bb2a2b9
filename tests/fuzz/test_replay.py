"""Replay files: written, read, refused, and tried again by one command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_cplife.fuzz.__main__ import main
from pytest_cplife.fuzz.replay import explain, read_replay, write_replay
from pytest_cplife.fuzz.roundtrip import RoundTrip
from pytest_cplife.fuzz.search import Found
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite
from pytest_cplife.fuzz.tensors import TensorSpec
from pytest_cplife.mesh import MeshSpec
from tests.fuzz.conftest import StageFactory

EXAMPLE = RoundTrip(MeshSpec.parse("dp=2"), TensorSpec((1,), placements=("S(0)",)))


@pytest.fixture
def written(stage: StageFactory, tmp_path: Path) -> Path:
    made = stage("tests.fuzz.geometry_faults:EmptyShard", ["dp=2"])
    suite = RoundTripSuite(made)
    path = tmp_path / "found.json"
    violations = tuple(suite.check(EXAMPLE))
    assert violations
    write_replay(path, suite, made, Found(EXAMPLE, violations))
    return path


def test_command_shows_the_failure_again(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written)]) == 1
    shown = capsys.readouterr().out
    assert "mesh dp2" in shown and "float32 (1,) [S(0)]" in shown
    assert "to_plain: bytes, it on ranks 0, 1:" in shown


def test_command_says_when_nothing_is_wrong_any_more(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(written), "--adapter", "tests.fuzz.careful:Careful"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is no replay file"),
        ("[]", "is no replay file"),
        ('{"format": "pytest-cplife fuzz example", "version": 9}', "version 1 is known"),
        ('{"format": "pytest-cplife fuzz example", "version": 1, "suite": "x"}', "suite 'x'"),
    ],
)
def test_other_files_are_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err


def test_file_is_readable_without_the_engine(written: Path) -> None:
    data = json.loads(written.read_text())
    assert data["shown"] == ["mesh dp2", "it: float32 (1,) [S(0)]"]
    assert read_replay(written).example == data["example"]


def test_explanation_names_the_command(stage: StageFactory, written: Path) -> None:
    suite = RoundTripSuite(stage("tests.fuzz.careful:Careful", ["dp=2"]))
    text = explain(suite, Found(EXAMPLE, ()), written)
    assert f"replay with: python -m pytest_cplife.fuzz {written}" in text
