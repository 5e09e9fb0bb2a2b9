"""Profiles owe nothing to the ambient settings, in CI or out of it."""

from __future__ import annotations

import os
import subprocess
import sys

import hypothesis
import pytest

from pytest_cplife.fuzz.profiles import GATE, QUICK, Profile, explore

FIELDS = (
    "backend",
    "database",
    "deadline",
    "derandomize",
    "max_examples",
    "phases",
    "print_blob",
    "report_multiple_bugs",
    "stateful_step_count",
    "suppress_health_check",
    "verbosity",
)

SHOW = """
from pytest_cplife.fuzz.profiles import GATE
import hypothesis
made = GATE.settings(1)
print([(name, getattr(made, name)) for name in {fields}])
print(hypothesis.settings.default.max_examples, hypothesis.settings.default.database)
"""


def shown(**environment: str) -> list[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("CI", "GITHUB_ACTIONS", "TF_BUILD")}
    command = [sys.executable, "-c", SHOW.format(fields=FIELDS)]
    output = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    return output.stdout.splitlines()


def test_gate_is_the_same_in_ci() -> None:
    here, ci = shown(), shown(CI="true")
    assert here[0] == ci[0]
    # The ambient profile does differ, or the comparison above would prove nothing.
    assert here[1] != ci[1]


def test_every_setting_is_pinned() -> None:
    known = {
        name for name, value in vars(hypothesis.settings).items() if isinstance(value, property)
    }
    assert known == set(FIELDS)
    extreme = hypothesis.settings(
        max_examples=7,
        derandomize=False,
        deadline=123,
        stateful_step_count=3,
        print_blob=True,
        report_multiple_bugs=True,
        phases=[hypothesis.Phase.explicit],
        verbosity=hypothesis.Verbosity.debug,
        suppress_health_check=[],
    )
    before = GATE.settings(1)
    hypothesis.settings.register_profile("extreme", extreme)
    old = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile("extreme")
    try:
        inside = GATE.settings(1)
    finally:
        hypothesis.settings.load_profile(old)
    for name in FIELDS:
        assert getattr(inside, name) == getattr(before, name), name


def test_one_bug_at_a_time_and_no_database() -> None:
    for profile in (QUICK, GATE):
        assert profile.derandomize
    for profile in (QUICK, GATE, explore(1.0)):
        made = profile.settings(1)
        assert made.database is None and not made.report_multiple_bugs


@pytest.mark.parametrize(("cost", "examples"), [(1, 300), (12, 25), (1000, 5)])
def test_dearer_suites_get_fewer_examples(cost: int, examples: int) -> None:
    profile = Profile("any", examples=300, shrinks=1, derandomize=True)
    assert profile.settings(cost).max_examples == examples
