"""CRASH between meshes on hand-made evidence: what one leaves, another takes up and gives back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.evidence.records import ValueRecord
from pytest_cplife.evidence.run import RunEvidence, RunFailure, Unanswered
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.registry import get_rule
from tests.rules.builders import Lab, subjects, violations

PARTNER = "dp=4"
LAST = FolderState("generation 2", "t9", "second", False)
OVER = FolderState("generation 2, rank 1 before renaming part-#", "t1", "first", False)
FRESH = FolderState("generation 1, rank 1 before renaming part-#", "t2", "", True)
Loads = Mapping[str, Sequence[Snapshot] | Sequence[str]]


def state(
    lab: Lab, number: int, step: int | None = None, position: int | None = None
) -> list[Snapshot]:
    """Weights, a counter and an extra entry that are `number`'s; these of others where given."""
    weights = {"w": lab.sharded([float(number)] * 6)}
    extra = {"position": ValueRecord("int", str(position or number))}
    return lab.snapshots(parameters=weights, step=step or number, extra=extra)


def overwriting(lab: Lab) -> RunEvidence:
    """On the partner, of which the evidence is held against what this mesh loads."""
    there = lab.on(PARTNER)
    saved = {f"generation {n}": state(there, n) for n in (1, 2)}
    return there.run("overwriting of partner", saved)


def moved(lab: Lab, states: Sequence[FolderState], loads: Loads, **more: Any) -> RunEvidence:
    """By tree: what came back, or each rank's refusal; the undisturbed one is whole."""
    moments: dict[str, Any] = {LAST.tree: state(lab, 2)}
    facts: dict[str, Any] = {"states": [[LAST, *states]] * 2}
    for tree, seen in loads.items():
        refused = isinstance(seen[0], str)
        facts[f"{tree}: refused"] = seen if refused else ["", ""]
        if not refused:
            moments[tree] = seen
    return lab.run("moved over", moments, facts=facts, **more)


def case_of(lab: Lab, *runs: RunEvidence) -> Case:
    return lab.case(*runs, partner=PARTNER)


def interrupted(lab: Lab, one: FolderState, *seen: Any) -> list[str]:
    """What CRASH-35 says of one state that was loaded, or refused, on two ranks."""
    case = case_of(lab, overwriting(lab), moved(lab, [one], {one.tree: seen}))
    return [violation.observed for violation in violations("CRASH-35", case)]


@pytest.mark.parametrize("number", [1, 2])
def test_either_generation_of_the_other_mesh_will_do(lab: Lab, number: int) -> None:
    assert interrupted(lab, OVER, *state(lab, number)) == []


def test_a_mixture_is_neither(lab: Lab) -> None:
    mixed = state(lab, 1, step=2)
    assert interrupted(lab, OVER, *mixed) == [
        "weights of generation 1, counters of generation 2, extra state of generation 1"
    ]


def test_a_refusal_loses_the_older_one(lab: Lab) -> None:
    assert interrupted(lab, OVER, "EOFError: cut", "EOFError: cut") == ["refused: EOFError: cut"]


def test_at_a_new_path_it_is_right_if_all_refuse(lab: Lab) -> None:
    assert interrupted(lab, FRESH, "EOFError: cut", "EOFError: cut") == []
    assert interrupted(lab, FRESH, "", "cut") == ["refused by rank 1 and loaded by the others"]
    assert interrupted(lab, FRESH, *state(lab, 1)) == []
    # The second was never saved when that was there.
    assert interrupted(lab, FRESH, *state(lab, 2)) != []


@pytest.mark.parametrize("part", ["step", "position"])
def test_what_no_load_brings_to_this_mesh_is_left_to_other_rules(lab: Lab, part: str) -> None:
    found = {OVER.tree: state(lab, 1, **{part: 98})}
    run = moved(lab, [OVER], found)
    assert subjects("CRASH-35", case_of(lab, overwriting(lab), run))
    for journal, seen in zip(run.ranks, state(lab, 2, **{part: 99}), strict=True):
        journal.snapshots[LAST.tree] = seen  # it never comes along
    assert not subjects("CRASH-35", case_of(lab, overwriting(lab), run))


def test_what_the_mesh_that_was_killed_finds_no_more_is_told_there() -> None:
    assert {"CRASH-09", "LOAD-09"} <= set(get_rule("CRASH-35").presumes)
    assert {"CRASH-21", "DCP-05"} <= set(get_rule("CRASH-37").presumes)


def test_where_nothing_could_be_followed_there_is_nothing_to_judge(lab: Lab) -> None:
    with pytest.raises(NotCovered, match="cannot be followed"):
        violations("CRASH-35", case_of(lab, overwriting(lab), moved(lab, [], {})))


def returned(lab: Lab, back: Sequence[Snapshot], *, refusal: str = "", **more: Any) -> Case:
    """The partner has gone on to a third generation, and this mesh loads `back`."""
    there = lab.on(PARTNER)
    facts = {"refusal": [refusal] * there.ranks}
    gone_on = there.run("moved over of partner", {"moved on": state(there, 3)}, facts=facts)
    phases = ("put back", "start", "load", "train", "replace", "close")
    here = moved(lab, [OVER], {}, phases=phases, **more)
    load = lab.run("returned over", {"returned": back}, phases=("start", "load", "close"))
    return case_of(lab, overwriting(lab), gone_on, here, load)


def test_what_the_other_mesh_has_saved_comes_back(lab: Lab) -> None:
    assert not subjects("CRASH-36", returned(lab, state(lab, 3)))


def test_what_was_there_before_comes_back(lab: Lab) -> None:
    assert subjects("CRASH-36", returned(lab, state(lab, 2))) == ["w", "global_step"]


def test_files_of_a_rank_that_was_away_are_read_again(lab: Lab) -> None:
    stale = [state(lab, 3)[0], replace(state(lab, 3)[1], counters={"global_step": 2, "epoch": 0})]
    (violation,) = violations("CRASH-36", returned(lab, stale))
    assert (violation.subject, violation.ranks) == ("global_step", (1,))
    assert violation.moment == "returned over from dp4: returned"


def test_what_was_saved_over_an_older_one_does_not_come_along(lab: Lab) -> None:
    case = returned(lab, state(lab, 3))
    for journal, seen in zip(case["moved over"].ranks, state(lab, 1), strict=True):
        journal.snapshots[LAST.tree] = seen
    found = violations("CRASH-36", case)
    assert {one.subject for one in found} == {"w", "global_step"}
    assert {one.moment for one in found} == {"moved over from dp4: generation 2"}


def test_a_trainer_that_replaces_nothing(lab: Lab) -> None:
    case = returned(lab, state(lab, 2), refusal="a save is refused (FileExistsError: there)")
    with pytest.raises(NotCovered, match="FileExistsError"):
        violations("CRASH-36", case)


def test_what_an_interrupted_save_ends_is_the_other_rules(lab: Lab) -> None:
    hang = RunFailure("load an interrupted save", (1,), "rank 1 waits", "where it waits")
    case = returned(lab, state(lab, 3), failure=hang)
    assert not subjects("CRASH-36", case)
    with pytest.raises(Unanswered):  # the session says of what
        violations("CRASH-35", case)


def test_a_save_that_fails_where_another_mesh_has_saved(lab: Lab) -> None:
    failure = RunFailure("replace", (0,), "rank 0 raised: no", "trace")
    case = returned(lab, state(lab, 3), failure=failure)
    assert subjects("CRASH-36", case) == ["replace (moved over)"]


@pytest.mark.parametrize("rule", ["CRASH-35", "CRASH-36", "CRASH-37", "CRASH-38"])
def test_one_mesh_is_not_enough(lab: Lab, rule: str) -> None:
    suffix = " sharded" if rule > "CRASH-36" else ""
    with pytest.raises(NotCovered, match="only one mesh"):
        violations(rule, lab.case(lab.run(f"overwriting{suffix}")))


def test_sharded_rules_ask_for_the_sharded_runs(lab: Lab) -> None:
    case = returned(lab, state(lab, 2))
    runs = {
        re.sub("over(writing)?", r"\g<0> sharded", name): run for name, run in case.runs.items()
    }
    assert subjects("CRASH-38", replace(case, runs=runs)) == ["w", "global_step"]
