"""The file of expected failures is taken at its word, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cplife.expected import Expectation, read_expected
from tests.plugin.conftest import TOTAL, Run

KNOWN = """
[[expected]]
rule = "GO-02"
mesh = "dp=2,cp=2"
reason = "the scheduler is rebuilt, see #12"
"""


def read(folder: Path, text: str) -> tuple[Expectation, ...]:
    path = folder / "known.toml"
    path.write_text(text)
    return read_expected(path).entries


def test_an_entry_is_read(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, KNOWN)
    assert entry == Expectation("GO-02", "dp2-cp2", "the scheduler is rebuilt, see #12")
    assert entry.covers("GO-02", "dp2-cp2") and not entry.covers("GO-02", "dp1")


def test_an_empty_file_expects_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[expected]]\nrule = 'GO-02'\n", "entry 1: GO-02 has no reason; say why"),
        ("[[expected]]\nrule = 'GO-02'\nreason = ' '\n", "entry 1: GO-02 has no reason"),
        ("[[expected]]\nreason = 'x'\n", "entry 1: no rule"),
        ("[[expected]]\nrule = 'GO-02'\nreason = 'x'\nuntil = '3'\n", "unknown key until"),
        ("[[expected]]\nrule = 2\nreason = 'x'\n", "rule is 2; accepted is a string"),
        ("[[expected]]\nrule = 'GO-02'\nreason = 'x'\nmesh = 'dp'\n", "mesh 'dp': cannot read"),
        ("[expected]\nrule = 'GO-02'\n", "cannot use 'expected'; accepted are tables"),
        ("[[expect]]\nrule = 'GO-02'\n", "cannot use 'expect'; accepted are tables"),
        ("rule: GO-02", "known.toml is not TOML"),
        (KNOWN + KNOWN, "GO-02 on dp2-cp2 and GO-02 on dp2-cp2 overlap"),
        (KNOWN + "[[expected]]\nrule = 'GO-02'\nreason = 'x'\n", "on every mesh and GO-02"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match=r"cannot read .*nosuch\.toml"):
        read_expected(tmp_path / "nosuch.toml")


def test_an_expected_failure_is_an_xfail(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "known.toml").write_text(KNOWN)
    for extra in ([], ["-n2"]):
        result = run("--cplife-expected=known.toml", *extra)
        result.assert_outcomes(passed=TOTAL - 4, xfailed=1, skipped=3)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(["expected, 1: the scheduler is rebuilt, see #12 [[]GO-02]"])


def test_an_entry_that_passes_now_fails(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "known.toml").write_text(KNOWN.replace("dp=2,cp=2", "dp=1"))
    result = run("--cplife-expected=known.toml", "-k", "GO-02")
    result.assert_outcomes(failed=2, passed=1, deselected=16)
    result.stdout.fnmatch_lines(
        ["reason  passes now, but is expected to fail (the scheduler is rebuilt, see #12); take*"]
    )


def test_an_entry_that_applies_to_nothing_fails_the_run(
    run: Run, pytester: pytest.Pytester
) -> None:
    text = KNOWN + "[[expected]]\nrule = 'SCHED-01'\nreason = 'x'\n"
    (pytester.path / "known.toml").write_text(text)
    result = run("--cplife-expected=known.toml")
    result.assert_outcomes(passed=TOTAL - 4, xfailed=1, skipped=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["problem: unused expected failure: SCHED-01 on every mesh is not*"]
    )


def test_an_entry_about_no_rule_ends_the_run(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "known.toml").write_text(KNOWN.replace("GO-02", "GO-99"))
    result = run("--cplife-expected=known.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: known.toml: no such rule: GO-99; *"])
