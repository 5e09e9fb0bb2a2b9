"""A part that does not work at all is one rule's failure; what needs it is blocked, by its name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_cplife.blame import in_light_of
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import Case, Declared
from pytest_cplife.rules.model import Outcome, Verdict, Violation
from pytest_cplife.rules.registry import all_rules, get_rule
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings

SPEC = MeshSpec.parse("fsdp=2")


def judge_all(adapter: str, folder: Path) -> list[Verdict]:
    with Session(Settings(f"tests.rules.broken:{adapter}", folder, meshes=(SPEC,))) as session:
        return [session.judge(rule, SPEC if rule.runs else None) for rule in all_rules()]


@pytest.mark.parametrize(
    ("adapter", "failing", "most_blocked_by"),
    [
        ("NoStart", {"PLACE-01"}, "PLACE-01"),
        ("NoSave", {"SAVE-01"}, "SAVE-01"),
        ("SavesElsewhere", {"SAVE-01", "SAVE-09", "SAVE-11"}, "SAVE-01"),
        ("NoLoad", {"LOAD-01"}, "LOAD-01"),
    ],
)
def test_one_rule_fails_and_the_rest_is_blocked(
    tmp_path: Path, adapter: str, failing: set[str], most_blocked_by: str
) -> None:
    verdicts = judge_all(adapter, tmp_path)
    assert {v.rule for v in verdicts if v.outcome is Outcome.FAILED} == failing
    reasons = Counter(v.reason for v in verdicts if v.outcome is Outcome.BLOCKED)
    assert reasons.most_common(1)[0][0] == f"blocked by {most_blocked_by}"
    known = {f"blocked by {id}" for id in failing}
    assert set(reasons) <= known, "whoever blocks has failed itself"


def test_what_a_load_does_not_restore_is_told_once(tmp_path: Path) -> None:
    """What comes later is blocked, but for stop and go, which says where to begin."""
    verdicts = judge_all("SavesNoOptimizer", tmp_path)
    failed = {v.rule: v.reason for v in verdicts if v.outcome is Outcome.FAILED}
    told = ["OPT-01", "OPT-04"]
    assert list(failed)[:2] == told, "the first is the one to begin with"
    later = {rule: reason for rule, reason in failed.items() if rule not in told}
    assert {rule.partition("-")[0] for rule in later} == {"GO", "SERIAL"}
    assert set(later.values()) == {"OPT-01, OPT-04 failed: begin there"}
    blocked = {v.rule: v.reason for v in verdicts if v.outcome is Outcome.BLOCKED}
    assert set(blocked.values()) == {"blocked by OPT-01", "blocked by OPT-04"}
    assert {"COMPAT-04", "CRASH-06", "CRASH-08", "CRASH-12", "FUZZ-03", "FUZZ-04"} <= set(blocked)


def test_only_what_was_named_is_no_news() -> None:
    """A weight that is lost as well is not hidden by the state that is."""
    rule = get_rule("COMPAT-04")
    state = Violation("a.weight[exp_avg]", "present", "missing")
    weight = Violation("a.weight", "equal bit for bit", "4 of 4 elements differ")
    found = Verdict(rule.id, "fsdp=2", Outcome.FAILED, violations=(state, weight))
    told = {"OPT-01": [Violation("a.weight", "exp_avg", "missing")]}
    case = Case(SPEC, Declared(), {})
    assert in_light_of(rule, case, found, told).violations == (weight,)
    alone = replace(found, violations=(state,))
    assert in_light_of(rule, case, alone, told).outcome is Outcome.BLOCKED
    assert in_light_of(rule, case, alone, {}) == alone
