"""The FUZZ rules in a session: as much as the profile says, once, over the meshes there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_cplife.selftest.bench import Bench

from pytest_cplife.fuzz import evidence
from pytest_cplife.fuzz.profiles import GATE, QUICK, profile_of
from pytest_cplife.fuzz.replay import read_replay
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Outcome
from pytest_cplife.rules.registry import get_rule, rules_of
from pytest_cplife.session import Session
from pytest_cplife.settings import PROFILES, Settings

FAULT = "pytest_cplife.selftest.faults.geometry:OneElement"
OTHER = "pytest_cplife.selftest.faults.geometry:TallTensor"
TWO = MeshSpec.parse("dp=2")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


def test_profile_that_is_off_runs_nothing_and_says_so(bench: Bench, tmp_path: Path) -> None:
    with Session(Settings(FAULT, tmp_path, profile="off"), bench.launcher) as session:
        verdicts = [session.judge(rule, None) for rule in rules_of("FUZZ")]
    assert {(v.outcome, v.reason) for v in verdicts} == {
        (Outcome.NOT_RUN, "the profile of fuzzing is off")
    }


def test_verdict_is_the_same_on_every_mesh_and_searched_for_once(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(Settings(FAULT, tmp_path, meshes=(TWO,)), bench.launcher) as session:
        first = session.judge(get_rule("FUZZ-01"), TWO)
        monkeypatch.setattr(evidence, "search", None)
        second = session.judge(get_rule("FUZZ-01"), None)
    assert (first.mesh, first.outcome) == ("", Outcome.FAILED)
    assert first.violations == second.violations and first.replay == second.replay


def test_example_that_failed_outlives_the_session(bench: Bench, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for work in ("one", "two"):
        settings = Settings(FAULT, tmp_path / work, meshes=(TWO,), kept=kept)
        with Session(settings, bench.launcher) as session:
            verdict = session.judge(get_rule("FUZZ-01"), None)
        replay = read_replay(Path(verdict.replay))
        assert (replay.suite, replay.adapter, replay.meshes) == ("round trip", FAULT, ("dp=2",))
    # What is found again has no second file.
    assert [str(path) for path in kept.iterdir()] == [verdict.replay]


def test_exploring_begins_with_what_failed_before(bench: Bench, tmp_path: Path) -> None:
    """Within so little time nothing else is tried; another adapter's examples are its own."""
    place = {"kept": tmp_path / "kept", "meshes": (TWO,)}
    with Session(Settings(FAULT, tmp_path / "one", **place), bench.launcher) as session:
        assert session.judge(get_rule("FUZZ-01"), None).outcome is Outcome.FAILED
    (tmp_path / "kept" / "round-trip-00000000.json").write_text("of another version")
    hasty = {**place, "profile": "explore", "fuzz_seconds": 1e-6}
    for adapter, outcome in ((FAULT, Outcome.FAILED), (OTHER, Outcome.PASSED)):
        with Session(
            Settings(adapter, tmp_path / outcome.value, **hasty), bench.launcher
        ) as session:
            assert session.judge(get_rule("FUZZ-01"), None).outcome is outcome


def test_meshes_that_are_too_large_are_left_out(bench: Bench, tmp_path: Path) -> None:
    four = MeshSpec.parse("dp=4")
    settings = Settings(FAULT, tmp_path / "some", meshes=(TWO, four), max_world_size=2)
    with Session(settings, bench.launcher) as session:
        assert read_replay(Path(session.judge(get_rule("FUZZ-01"), None).replay)).meshes == (
            "dp=2",
        )
    settings = Settings(FAULT, tmp_path / "none", meshes=(four,), max_world_size=2)
    with Session(settings, bench.launcher) as session:
        verdict = session.judge(get_rule("FUZZ-01"), None)
    assert verdict.outcome is Outcome.NOT_COVERED
    assert verdict.reason == "every mesh needs more than 2 ranks"


def test_capability_that_is_absent_is_told_without_a_run(bench: Bench, tmp_path: Path) -> None:
    with Session(
        Settings("pytest_cplife.selftest.trainers.fsdp2:Adapter", tmp_path), bench.launcher
    ) as session:
        verdict = session.judge(get_rule("FUZZ-01"), None)
    assert verdict.outcome is Outcome.NOT_COVERED
    assert verdict.reason == "capabilities to_plain, realign are not offered"
    assert not (tmp_path / "fuzz").exists()


def test_profiles_by_name(tmp_path: Path) -> None:
    assert profile_of(Settings("m:A", tmp_path)) is QUICK
    assert profile_of(Settings("m:A", tmp_path, profile="gate")) is GATE
    made = profile_of(Settings("m:A", tmp_path, profile="explore", fuzz_seconds=5.0))
    assert (made.seconds, made.derandomize) == (5.0, False)
    with pytest.raises(ValueError, match="'deep'; accepted are quick, gate, explore, off"):
        profile_of(Settings("m:A", tmp_path, profile="deep"))
    assert {"quick", "gate", "explore"} < set(PROFILES)
