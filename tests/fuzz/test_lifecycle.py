"""Faults of one kind of lifecycle each are found, and their plans are made as short as they get."""

from __future__ import annotations

import pytest

from pytest_cplife.fuzz.plan_suites import LifecycleSuite, MeshPairSuite, mesh_pair
from pytest_cplife.fuzz.profiles import GATE, Profile
from pytest_cplife.fuzz.search import search
from pytest_cplife.mesh import MeshSpec
from tests.fuzz.conftest import StageFactory

MESHES = ("fsdp=1", "fsdp=2")

SHORTEST = {
    "tests.trainers.fsdp2:Naive": "fsdp1: save(0)",
    "tests.fuzz.lifecycle_faults:StaleSecondSave": "fsdp1: save(0), train(1), save(1), load(1)",
}


@pytest.mark.parametrize("adapter", SHORTEST)
def test_lifecycle_fault_is_found_and_made_short(adapter: str, stage: StageFactory) -> None:
    suite = LifecycleSuite(stage(adapter, MESHES))
    outcome = search(suite, GATE)
    assert outcome.found is not None, f"not found in {outcome.examples} plans"
    print(outcome.first_at, outcome.examples, f"{outcome.seconds:.1f}s")
    print(suite.show(outcome.found.example), outcome.found.violations[:2])
    assert len(outcome.found.example.steps) == SHORTEST[adapter].count("("), suite.show(
        outcome.found.example
    )


def test_fault_of_one_pair_of_meshes_is_found(stage: StageFactory) -> None:
    suite = MeshPairSuite(stage("tests.fuzz.lifecycle_faults:PairLosesMoments", MESHES))
    outcome = search(suite, GATE)
    assert outcome.found is not None, f"not found in {outcome.examples} plans"
    print(outcome.first_at, outcome.examples, f"{outcome.seconds:.1f}s")
    two, one = MeshSpec.parse("fsdp=2"), MeshSpec.parse("fsdp=1")
    assert outcome.found.example == mesh_pair(two, one, 1, 0)
    assert outcome.found.violations[0].moment == "restart: optimizer state"
    assert all("exp_avg" in violation.subject for violation in outcome.found.violations)


def test_steps_after_a_change_of_mesh_are_held_against_the_uninterrupted_run(
    stage: StageFactory,
) -> None:
    """What differs only in later steps is beyond the meshes' own differences."""
    suite = MeshPairSuite(stage("tests.fuzz.lifecycle_faults:OtherDataElsewhere", MESHES))
    one, two = (MeshSpec.parse(mesh) for mesh in MESHES)
    violations = suite.check(mesh_pair(one, two, 1, 1))
    assert violations and {violation.moment for violation in violations} == {"train"}
    worst = max(violation.difference or 0.0 for violation in violations)
    assert worst > 100 * max(violation.budget or 0.0 for violation in violations)
    assert not suite.check(mesh_pair(two, two, 1, 1))


def test_healthy_trainer_has_no_fault(stage: StageFactory) -> None:
    suite = LifecycleSuite(stage("tests.trainers.fsdp2:Adapter", MESHES))
    outcome = search(suite, Profile("some", examples=60, shrinks=1, derandomize=True))
    assert outcome.found is None, (suite.show(outcome.found.example), outcome.found.violations)
    assert outcome.examples > 3
