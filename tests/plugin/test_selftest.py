"""The suite's own proof, asked for as a user does: from a folder of his own, by one option."""

from __future__ import annotations

import pytest

ONE = "selftest/test_kill_matrix.py::test_fault_is_found[SAVE-01-"


def test_the_selftest_has_its_ids_wherever_it_is_run(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--cplife-selftest", "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    found = [line for line in result.outlines if line.startswith(ONE)]
    assert found
    assert not [line for line in result.outlines if "::" in line and "selftest/" not in line]


def test_a_fault_is_judged_by_its_pasted_id_and_counted(pytester: pytest.Pytester) -> None:
    collected = pytester.runpytest_subprocess("--cplife-selftest", "--collect-only", "-q")
    pasted = next(line for line in collected.outlines if line.startswith(ONE))
    result = pytester.runpytest_subprocess("--cplife-selftest", pasted)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["1 planted faults: 1 found by the rule that has to find it, 0 missed"]
    )
