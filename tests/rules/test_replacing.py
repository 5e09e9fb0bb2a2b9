"""Trainers that never save over a checkpoint: sound where every rank says so."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Outcome, Verdict
from pytest_cplife.rules.registry import get_rule, rules_of
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings

SPEC = MeshSpec.parse("fsdp=2")
REPLACING = ("CRASH-03", "CRASH-08", "CRASH-09", "CRASH-11", "CRASH-12")


def judge(adapter: str, folder: Path) -> dict[str, Verdict]:
    with Session(Settings(f"tests.rules.broken:{adapter}", folder, meshes=(SPEC,))) as session:
        return {rule.id: session.judge(rule, SPEC) for rule in rules_of("CRASH")}


def test_refusal_is_not_covered_and_the_rest_is_asked_at_new_paths(tmp_path: Path) -> None:
    verdicts = judge("Refuses", tmp_path)
    wrong = [v for v in verdicts.values() if v.outcome in (Outcome.FAILED, Outcome.BLOCKED)]
    assert not wrong
    reason = (
        "a save to a path where a checkpoint lies is refused"
        " (FileExistsError: a checkpoint is there already)"
    )
    for id in REPLACING:
        assert (verdicts[id].outcome, verdicts[id].reason) == (Outcome.NOT_COVERED, reason), id
    asked = ("CRASH-04", "CRASH-05", "CRASH-06", "CRASH-10")
    assert {verdicts[id].outcome for id in asked} == {Outcome.PASSED}


def test_refusal_on_another_mesh_is_not_covered(tmp_path: Path) -> None:
    """What was interrupted there at a new path is judged all the same."""
    meshes = (MeshSpec.parse("fsdp=1"), SPEC)
    with Session(Settings("tests.rules.broken:Refuses", tmp_path, meshes=meshes)) as session:
        loads, replaces = (session.judge(get_rule(f"CRASH-{n}"), SPEC) for n in (35, 36))
    assert loads.outcome is Outcome.PASSED
    assert replaces.outcome is Outcome.NOT_COVERED
    assert "a checkpoint is there already" in replaces.reason


def test_refusal_of_one_rank_is_told_by_its_exception(tmp_path: Path) -> None:
    verdicts = judge("RefusesAlone", tmp_path)
    assert [id for id, v in verdicts.items() if v.outcome is Outcome.FAILED] == ["CRASH-08"]
    told = verdicts["CRASH-08"].violations[0].observed
    assert told.startswith(
        "rank 0 raised FileExistsError: a checkpoint is there already in the save, and "
    )
