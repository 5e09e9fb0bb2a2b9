"""Replay files: written, refused, and tried again by one run of pytest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.fuzz.replay import read_replay, write_replay
from pytest_cplife.fuzz.roundtrip import RoundTrip
from pytest_cplife.fuzz.search import Found
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite
from pytest_cplife.fuzz.tensors import TensorSpec
from pytest_cplife.mesh import MeshSpec
from tests.fuzz.conftest import StageFactory

EXAMPLE = RoundTrip(MeshSpec.parse("dp=2"), TensorSpec((1,), placements=("S(0)",)))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def written(stage: StageFactory, pytester: pytest.Pytester) -> Path:
    made = stage("pytest_cplife.selftest.faults.geometry:EmptyShard", ["dp=2"])
    suite = RoundTripSuite(made)
    path = pytester.path / "found.json"
    violations = tuple(suite.check(EXAMPLE) or ())
    assert violations
    write_replay(path, suite, made, Found(EXAMPLE, violations))
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}\n")
    return path


def changed(path: Path, **changes: Any) -> None:
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def test_failure_is_shown_again(written: Path, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(f"--cplife-replay={written.name}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "found.json F *",
            "suite 'round trip', example:",
            "    mesh dp2",
            "    it: float32 (1,) [[]S(0)]",
            "to_plain: bytes, it on ranks 0, 1:",
            "    expected bytes 0000803f at (0,)",
            "*= cplife: replay =*",
            "suite 'round trip', adapter pytest_cplife.selftest.faults.geometry:EmptyShard",
            "it fails",
        ]
    )


def test_example_that_is_right_now_passes_and_is_shown(
    written: Path, pytester: pytest.Pytester
) -> None:
    result = pytester.runpytest_subprocess(
        f"--cplife-replay={written}",
        "--cplife-adapter=pytest_cplife.selftest.faults.careful:Careful",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "suite 'round trip', adapter pytest_cplife.selftest.faults.careful:Careful",
            "    it: float32 (1,) [[]S(0)]",
            "nothing is wrong with it",
        ]
    )


def test_adapter_that_is_gone_is_told(written: Path, pytester: pytest.Pytester) -> None:
    changed(written, adapter="gone:Adapter")
    result = pytester.runpytest_subprocess(f"--cplife-replay={written}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*gone*", "--cplife-adapter=MOD:ATTR says which adapter to try"])


def test_example_of_another_suite_is_told(written: Path, pytester: pytest.Pytester) -> None:
    changed(written, example={"mesh": "dp=2"})
    result = pytester.runpytest_subprocess(f"--cplife-replay={written}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the example cannot be read: KeyError: 'tree'"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "it is no replay file: Expecting value*"),
        ("[]", "it is no replay file: it has no format *"),
        ('{"format": "pytest-cplife fuzz example"}', "it is of version None; version 1 is known;*"),
        (
            '{"format": "pytest-cplife fuzz example", "version": 1, "suite": "x"}',
            "it is of suite 'x'; there are round trip, strides, *",
        ),
        (
            '{"format": "pytest-cplife fuzz example", "version": 1, "suite": "lifecycle"}',
            "it is damaged: it has no 'steps'; a failed FUZZ rule names its file",
        ),
        (None, "No such file or directory"),
    ],
)
def test_other_files_are_refused(text: str | None, message: str, pytester: pytest.Pytester) -> None:
    path = pytester.path / "other.json"
    if text is not None:
        path.write_text(text)
    result = pytester.runpytest_inprocess("--cplife-replay=other.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --cplife-replay={path}: {message}"])


def test_what_else_is_asked_for_is_refused(written: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(): pass")
    for extra, message in (
        ("--cplife-mesh=dp=2", "which says all else; leave out --cplife-mesh"),
        ("--cplife-profile=gate", "which says all else; leave out --cplife-profile"),
        ("test_what_else_is_asked_for_is_refused.py", "leave out test_what_else*.py"),
    ):
        result = pytester.runpytest_inprocess(f"--cplife-replay={written}", extra)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --cplife-replay*{message}"])


def test_file_is_readable_without_the_engine(written: Path) -> None:
    data = json.loads(written.read_text())
    assert data["shown"] == ["mesh dp2", "it: float32 (1,) [S(0)]"]
    assert read_replay(written).example == data["example"]
