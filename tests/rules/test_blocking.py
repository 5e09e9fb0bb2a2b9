"""A part that does not work at all is one rule's failure; what needs it is blocked, by its name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Outcome, Verdict
from pytest_cplife.rules.registry import all_rules
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
