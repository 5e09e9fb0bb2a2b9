"""The FUZZ rules on evidence of real searches."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from pytest_cplife.fuzz.evidence import FUZZ_RUNS, Fuzzed, fuzzed, profile_named
from pytest_cplife.fuzz.profiles import GATE, Profile
from pytest_cplife.launchers.base import Launcher
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules import registry
from pytest_cplife.rules.case import Case, Declared
from pytest_cplife.rules.model import Violation
from pytest_cplife.settings import Settings

LITTLE = Profile("little", examples=150, shrinks=60, derandomize=True)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The rules, and the registry as it was afterwards: other tests count what is in it."""
    before = dict(registry._RULES)
    import_module("pytest_cplife.rules.fuzzing")
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


def judge(
    rule: str, run: str, adapter: str, launcher: Launcher, folder: Path, mesh: str = "dp=2"
) -> list[Violation]:
    settings = Settings(adapter, folder)
    evidence = fuzzed(run, settings, [MeshSpec.parse(mesh)], launcher, LITTLE)
    case = Case(None, Declared(), {run: evidence})
    return [
        finding for finding in registry._RULES[rule].check(case) if isinstance(finding, Violation)
    ]


def test_fault_is_a_violation_with_example_and_replay(launcher: Launcher, tmp_path: Path) -> None:
    fault = "tests.fuzz.geometry_faults:OneElement"
    [found] = judge("FUZZ-01", "fuzz round trip", fault, launcher, tmp_path)
    assert found.moment == "to_plain: shape" and found.ranks == (0, 1)
    assert "float32 (1,)" in found.detail and "python -m pytest_cplife.fuzz" in found.detail
    assert (tmp_path / "fuzz" / "fuzz-round-trip" / "replay.json").exists()


def test_lost_stride_is_told_by_its_own_rule_only(launcher: Launcher, tmp_path: Path) -> None:
    fault = "tests.fuzz.geometry_faults:TransposedTemplate"
    assert judge("FUZZ-02", "fuzz strides", fault, launcher, tmp_path)
    assert not judge("FUZZ-01", "fuzz round trip", fault, launcher, tmp_path)


def test_other_faults_are_not_told_by_the_rule_of_strides(
    launcher: Launcher, tmp_path: Path
) -> None:
    fault = "tests.fuzz.geometry_faults:OneElement"
    assert not judge("FUZZ-02", "fuzz strides", fault, launcher, tmp_path)


def test_plan_that_leaves_its_course_is_a_violation(launcher: Launcher, tmp_path: Path) -> None:
    naive = "tests.trainers.fsdp2:Naive"
    found = judge("FUZZ-04", "fuzz lifecycle", naive, launcher, tmp_path, "fsdp=1")
    assert found and "fsdp1: save(" in found[0].detail


@pytest.mark.parametrize("rule", ["FUZZ-01", "FUZZ-02", "FUZZ-03", "FUZZ-04"])
def test_search_without_examples_is_no_pass(rule: str) -> None:
    from pytest_cplife.evidence.assemble import Assembler
    from pytest_cplife.evidence.journal import RankJournal
    from pytest_cplife.evidence.run import RunEvidence
    from pytest_cplife.evidence.store import TensorStore

    journal = RankJournal(facts={"fuzzed": Fuzzed(0, 0.0, None)})
    assembler = Assembler(TensorStore(Path("nowhere")))
    runs = {name: RunEvidence(name, None, (journal,), None, assembler) for name in FUZZ_RUNS}
    assert list(registry._RULES[rule].check(Case(None, Declared(), runs)))


def test_profiles_by_name() -> None:
    assert profile_named("gate") is GATE
    assert profile_named("explore", 5.0).seconds == 5.0
    with pytest.raises(ValueError, match="accepted are quick, gate and explore"):
        profile_named("deep")
