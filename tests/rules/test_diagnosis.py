"""The likely cause is told from the pattern: known faults, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pytest_cplife.selftest.catalogue import FAULTS

from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules import diagnosis
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.diagnosis import PATTERNS
from pytest_cplife.rules.model import Outcome, Violation
from pytest_cplife.rules.pattern import Pattern
from pytest_cplife.rules.registry import all_rules, get_rule
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings
from tests.rules.builders import Lab

EXPECTED = [
    ("SavesOneShard", "SAVE-05", "shape of rank 0's shard"),
    ("RankZerosShard", "LOAD-02", "every rank holds what rank 0 had"),
    ("LoadsTheAverage", "LOAD-02", "the saved averages"),
    ("SkipsAKey", "LOAD-02", "those of a fresh start"),
    ("PermutedRows", "SAVE-05", ""),
    ("BiasCorrectionRestarts", "OPT-02", "step counts did not"),
    ("BiasCorrectionRestarts", "GO-02", "OPT-02 failed: begin there"),
    ("UndeclaredRestart", "GO-02", "bitwise_resume = False"),
    ("RateOffByAThousandth", "GO-02", "not data or noise"),
    ("LoaderStartsAgain", "GO-04", "data position or random streams"),
    ("NeverSynchronises", "GRAD-06", "not reduced over all of them alike"),
    ("DriftingReplica", "GRAD-07", "the same gradients"),
]


@pytest.mark.parametrize(("name", "rule", "said"), EXPECTED)
def test_cause_is_told_from_the_pattern(tmp_path: Path, name: str, rule: str, said: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    spec = MeshSpec.parse(fault.mesh)
    with Session(Settings(fault.adapter_ref, tmp_path, meshes=(spec,))) as session:
        verdict = session.judge(get_rule(rule), spec)
    assert verdict.outcome is Outcome.FAILED
    if said:
        assert said in verdict.reason
    else:
        assert verdict.reason == "", "no pattern is better than a wrong one"


def test_patterns_name_rules_that_exist() -> None:
    known = {rule.id for rule in all_rules()}
    named = {id for pattern in PATTERNS for id in pattern.rules}
    assert named
    assert named <= known


def test_a_pattern_that_cannot_look_leaves_the_verdict_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fits(case: Case, violations: Sequence[Violation]) -> bool:
        raise CannotAssemble("rank 1 holds (7,) where (6,) is due")

    broken = Pattern(("GO-02",), "what it would say", fits)
    sound = Pattern(("GO-02",), "what another says", lambda case, violations: True)
    monkeypatch.setattr(diagnosis, "PATTERNS", (broken, sound))
    found = (Violation("w", "this", "that"),)
    assert diagnosis.diagnose(get_rule("GO-02"), lab.case(), found) == "what another says"
