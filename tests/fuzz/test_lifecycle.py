"""The model of lifecycles: what it holds a run against, and what it lets pass."""

from __future__ import annotations

import pytest

from pytest_cplife.fuzz import lives
from pytest_cplife.fuzz.lifecycle import Lifecycle
from pytest_cplife.fuzz.lives import Chapter, Past
from pytest_cplife.fuzz.plan_suites import LifecycleSuite, MeshPairSuite, mesh_pair
from pytest_cplife.fuzz.plans import Plan, Step
from pytest_cplife.fuzz.profiles import GATE, Profile
from pytest_cplife.fuzz.search import search
from pytest_cplife.mesh import MeshSpec
from tests.fuzz.conftest import StageFactory

MESHES = ("fsdp=1", "fsdp=2")
ONE, TWO = (MeshSpec.parse(mesh) for mesh in MESHES)


def test_state_that_a_save_changes_is_found_and_its_plan_made_short(stage: StageFactory) -> None:
    suite = LifecycleSuite(stage("pytest_cplife.selftest.trainers.fsdp2:Naive", MESHES))
    outcome = search(suite, GATE)
    assert outcome.found is not None, f"not found in {outcome.examples} plans"
    assert outcome.found.example.mesh == ONE
    assert [step.operation for step in outcome.found.example.steps] == ["save"]


def test_steps_after_a_change_of_mesh_are_held_against_the_uninterrupted_run(
    stage: StageFactory,
) -> None:
    """What differs only in later steps is beyond the meshes' own differences."""
    suite = MeshPairSuite(stage("pytest_cplife.selftest.faults.lives:OtherDataElsewhere", MESHES))
    violations = suite.check(mesh_pair(ONE, TWO, 1, 1))
    assert violations and {violation.moment for violation in violations} == {"train"}
    worst = max(violation.difference or 0.0 for violation in violations)
    assert worst > 100 * max(violation.budget or 0.0 for violation in violations)
    assert suite.check(mesh_pair(TWO, TWO, 1, 1)) == ()


def test_what_was_lived_is_not_lived_again(stage: StageFactory) -> None:
    driver = Lifecycle(stage("pytest_cplife.selftest.trainers.fsdp2:Adapter", MESHES))
    assert driver.carry_out(mesh_pair(ONE, TWO, 1, 1)) == ()
    folder = driver.stage.new_folder()
    assert driver.carry_out(mesh_pair(ONE, TWO, 1, 1)) == ()
    assert int(driver.stage.new_folder().name) == int(folder.name) + 1


def test_disk_holds_no_more_than_some_chapters(
    stage: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "KEPT", 2)
    made = stage("pytest_cplife.selftest.trainers.fsdp2:Adapter", MESHES)
    driver = Lifecycle(made)
    for steps in (1, 2, 1, 3):
        assert driver.carry_out(mesh_pair(ONE, ONE, steps, 0)) == ()
        saved = [path for path in made.folder.glob("*/slot*") if path.is_file()]
        # Two runs are known: one that has saved, and one that has loaded that.
        assert len(saved) == 1


STORY = (
    *(Step("train"), Step("save", slot=1), Step("train"), Step("crash", slot=3), Step("train")),
    Step("restart", slot=3, mesh=ONE),
    Step("train"),
)


def chapters(driver: Lifecycle, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> list[Chapter]:
    """What a healthy trainer lived through on the way through `plan`."""
    seen: list[Past] = []
    of = driver.lives.of
    monkeypatch.setattr(driver.lives, "of", lambda past: (seen.append(past), of(past))[1])
    assert driver.carry_out(plan) == ()
    return list(max(seen, key=len))


def test_run_goes_on_from_its_live_state_where_all_ranks_know_that_a_save_failed(
    stage: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Lifecycle(stage("pytest_cplife.selftest.trainers.fsdp2:Adapter", MESHES))
    first, second = chapters(driver, Plan(ONE, STORY), monkeypatch)
    assert (first.steps, second.steps) == (STORY[:5], STORY[6:])
    # What the crash did not write cannot be restarted from.
    assert second.source is not None and second.source.slot == 1


def test_job_that_a_crash_ends_comes_back_from_the_last_whole_checkpoint(
    stage: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 cannot write, and rank 1 waits for it until the job is over."""
    driver = Lifecycle(stage("tests.fuzz.alone:Adapter", MESHES))
    first, again, last = chapters(driver, Plan(TWO, STORY), monkeypatch)
    assert (first.mesh, again.mesh, last.mesh) == (TWO, TWO, ONE)
    assert again.source is not None and (again.source.slot, again.steps) == (1, STORY[4:5])
    assert last.source is not None and last.source.slot == 1


def test_crash_before_any_save_starts_afresh(
    stage: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Lifecycle(stage("tests.fuzz.alone:Adapter", MESHES))
    steps = (Step("train"), Step("crash", slot=1), Step("train"))
    first, again = chapters(driver, Plan(TWO, steps), monkeypatch)
    assert (first.source, again.source, again.steps) == (None, None, steps[2:])


def test_rank_that_has_nothing_to_write_stops_no_save(
    stage: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is a checkpoint, and it has to be whole."""
    driver = Lifecycle(stage("pytest_cplife.selftest.trainers.fsdp2:Adapter", MESHES))
    steps = (Step("train"), Step("crash", slot=1, rank=1), Step("restart", slot=1, mesh=ONE))
    _, again = chapters(driver, Plan(TWO, steps), monkeypatch)
    assert again.source == steps[2]


def test_resume_that_rounds_otherwise_passes_where_the_adapter_says_so(
    stage: StageFactory,
) -> None:
    """DDP adds up the first gradients of a process in another order, on four ranks."""
    four = MeshSpec.parse("dp=4")
    driver = Lifecycle(stage("pytest_cplife.selftest.trainers.ddp:Rebucketing", ["dp=4"]))
    plan = mesh_pair(four, four, 2, 2)
    assert driver.carry_out(plan) == ()
    driver.trajectories.bitwise = True
    violations = driver.carry_out(plan)
    assert violations and {violation.moment.partition(":")[0] for violation in violations} == {
        "train"
    }


def test_healthy_trainer_has_no_fault(stage: StageFactory) -> None:
    suite = LifecycleSuite(stage("pytest_cplife.selftest.trainers.fsdp2:Adapter", MESHES))
    outcome = search(suite, Profile("some", examples=60, shrinks=1, derandomize=True))
    assert outcome.found is None, (suite.show(outcome.found.example), outcome.found.violations)
    assert outcome.examples > 3
