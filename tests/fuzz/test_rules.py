"""The FUZZ rules on evidence of real searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.journal import RankJournal
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.fuzz.evidence import FUZZ_RUNS, Fuzzed, Fuzzer
from pytest_cplife.fuzz.profiles import Profile
from pytest_cplife.launchers.base import Launcher
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import Case, Declared
from pytest_cplife.rules.model import Measurement, Violation
from pytest_cplife.rules.registry import get_rule
from pytest_cplife.settings import Settings

LITTLE = Profile("little", examples=150, shrinks=60, derandomize=True)


def judge(
    rule: str, adapter: str, launcher: Launcher, folder: Path, mesh: str = "dp=2"
) -> list[Violation]:
    fuzzer = Fuzzer(Settings(adapter, folder), [MeshSpec.parse(mesh)], launcher, LITTLE)
    judged = get_rule(rule)
    case = Case(None, Declared(), {run: fuzzer.run(run) for run in judged.runs})
    return [finding for finding in judged.check(case) if isinstance(finding, Violation)]


def test_fault_is_a_violation_with_its_example(launcher: Launcher, tmp_path: Path) -> None:
    fault = "pytest_cplife.selftest.faults.geometry:OneElement"
    [found] = judge("FUZZ-01", fault, launcher, tmp_path)
    assert found.moment == "to_plain: shape" and found.ranks == (0, 1)
    assert found.detail.splitlines() == [
        "smallest example:",
        "mesh dp2",
        "it: float32 (1,) [R]",
    ]


def test_lost_stride_is_told_by_its_own_rule_only(launcher: Launcher, tmp_path: Path) -> None:
    fault = "pytest_cplife.selftest.faults.geometry:TransposedTemplate"
    assert judge("FUZZ-02", fault, launcher, tmp_path)
    assert not judge("FUZZ-01", fault, launcher, tmp_path / "other")


def test_wrong_values_of_a_transposed_template_are_told_by_the_rule_of_values(
    launcher: Launcher, tmp_path: Path
) -> None:
    fault = "pytest_cplife.selftest.faults.geometry:TransposedValues"
    assert judge("FUZZ-01", fault, launcher, tmp_path)
    assert not judge("FUZZ-02", fault, launcher, tmp_path / "other")


def test_plan_that_leaves_its_course_is_a_violation(launcher: Launcher, tmp_path: Path) -> None:
    found = judge(
        "FUZZ-04", "pytest_cplife.selftest.trainers.fsdp2:Naive", launcher, tmp_path, "fsdp=1"
    )
    assert found and "fsdp1: save(" in found[0].detail


def of(fact: Fuzzed) -> Case:
    journal = RankJournal(facts={"fuzzed": fact})
    nowhere = Assembler(TensorStore(Path("nowhere")))
    runs = {name: RunEvidence(name, None, (journal,), None, nowhere) for name in FUZZ_RUNS}
    return Case(None, Declared(), runs)


RULES = pytest.mark.parametrize("rule", ["FUZZ-01", "FUZZ-02", "FUZZ-03", "FUZZ-04"])


@RULES
def test_search_that_judged_nothing_is_no_pass(rule: str) -> None:
    found = [f for f in get_rule(rule).check(of(Fuzzed(0, 0.0))) if isinstance(f, Violation)]
    assert [violation.subject for violation in found] == ["search"]


@RULES
def test_pass_says_how_much_was_tried(rule: str) -> None:
    assert list(get_rule(rule).check(of(Fuzzed(7, 1.5)))) == [
        Measurement("7 examples in 1.5 s", 0.0, 0.0)
    ]


def test_example_follows_a_trace_of_which_only_the_end_is_shown() -> None:
    fact = Fuzzed(3, 1.0, None, (Violation("w", "a", "b", detail="trace\n"),), "mesh dp2")
    [found] = get_rule("FUZZ-03").check(of(fact))
    assert isinstance(found, Violation)
    assert found.detail == "trace\n\nsmallest example:\nmesh dp2"
