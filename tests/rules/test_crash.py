"""CRASH on hand-made evidence: which states are whole, who was told, and what was left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.evidence.run import RunEvidence, RunFailure, Unanswered
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.rules.case import NotCovered
from tests.rules.builders import Lab, subjects, values, violations

OVER = FolderState("a full disk over a checkpoint", "t1", "torn", False)
FRESH = FolderState("a full disk at a new path", "t2", "half", True)
LAST = FolderState("generation 3", "t9", "third", False)
TOLD, SILENT = ["OSError: full", "RuntimeError: rank 0"], ["", ""]


def generation(lab: Lab, number: int, step: int | None = None) -> list[Snapshot]:
    """Weights and a counter that are `number`'s; the counter another's with `step`."""
    weights = {"w": lab.sharded([float(number)] * 3)}
    return lab.snapshots(f"generation {number}", parameters=weights, step=step or number)


def failing(
    lab: Lab, states: Sequence[FolderState], outcomes: Mapping[str, Sequence[str]], **more: Any
) -> RunEvidence:
    facts = {**outcomes, "states": [list(states)] * 2, "older checkpoint": ["first"] * 2}
    moments = {f"generation {n}": generation(lab, n) for n in (1, 2, 3)}
    moments["after failed saves"] = generation(lab, 2)
    return lab.run("failing", moments, facts=facts, **more)


def retried(lab: Lab, loads: Mapping[str, Sequence[Snapshot] | Sequence[str]]) -> RunEvidence:
    """By tree: what came back, or each rank's refusal; the undisturbed one is whole."""
    moments: dict[str, Any] = {LAST.tree: generation(lab, 3)}
    facts: dict[str, Any] = {"states": [[LAST]] * 2, f"{LAST.tree}: refused": SILENT}
    for tree, seen in loads.items():
        refused = isinstance(seen[0], str)
        facts[f"{tree}: refused"] = seen if refused else SILENT
        if not refused:
            moments[tree] = seen
    return lab.run("retried", moments, facts=facts)


def test_a_save_that_all_are_told_of(lab: Lab) -> None:
    assert not subjects("CRASH-01", lab.case(failing(lab, [OVER], {OVER.name: TOLD})))


def test_a_save_that_one_is_told_of(lab: Lab) -> None:
    case = lab.case(failing(lab, [OVER], {OVER.name: ["", "OSError: full"]}))
    (violation,) = violations("CRASH-01", case)
    assert violation.subject == OVER.name and violation.ranks == (1,)
    assert violation.observed == "OSError: full; rank 0 returns"


def test_a_hang_names_the_attempt(lab: Lab) -> None:
    hang = RunFailure("failing save", (1,), "rank 1 waits", "where it waits")
    case = lab.case(lab.run("failing", facts={"attempt": [OVER.name] * 2}, failure=hang))
    assert subjects("CRASH-01", case) == [OVER.name]


def test_where_nothing_was_disturbed_nothing_is_judged(lab: Lab) -> None:
    new = FolderState(OVER.name, "t1", "second", False)
    case = lab.case(
        failing(lab, [new], {new.name: SILENT}), retried(lab, {"t1": generation(lab, 2)})
    )
    for rule in ("CRASH-01", "CRASH-02", "CRASH-03"):
        with pytest.raises(NotCovered):
            violations(rule, case)


@pytest.mark.parametrize("left", ["first", ""])
def test_a_silent_save_has_to_be_made(lab: Lab, left: str) -> None:
    state = FolderState(OVER.name, "", left, False)
    case = lab.case(failing(lab, [state], {state.name: SILENT}), retried(lab, {}))
    assert subjects("CRASH-02", case) == [state.name]


def test_a_silent_save_of_which_the_file_is_torn(lab: Lab) -> None:
    states = failing(lab, [OVER, FRESH], {OVER.name: SILENT, FRESH.name: TOLD})
    refused = ["EOFError: cut"] * 2
    case = lab.case(states, retried(lab, {"t1": refused, "t2": refused}))
    assert subjects("CRASH-02", case) == [OVER.name]
    assert not subjects("CRASH-03", case)


@pytest.mark.parametrize("number", [1, 2])
def test_either_generation_will_do(lab: Lab, number: int) -> None:
    run = failing(lab, [OVER], {OVER.name: TOLD})
    case = lab.case(run, retried(lab, {"t1": generation(lab, number)}))
    assert not subjects("CRASH-03", case)


def test_an_untouched_checkpoint_need_not_be_loaded(lab: Lab) -> None:
    state = FolderState(OVER.name, "", "first", False)
    case = lab.case(failing(lab, [state], {state.name: TOLD}), retried(lab, {}))
    assert not subjects("CRASH-03", case)


def test_a_mixture_says_what_is_of_which(lab: Lab) -> None:
    mixed = generation(lab, 1, step=2)
    case = lab.case(failing(lab, [OVER], {OVER.name: TOLD}), retried(lab, {"t1": mixed}))
    (violation,) = violations("CRASH-03", case)
    assert violation.expected == "generation 1 or generation 2, whole"
    assert violation.observed == "weights of generation 1, counters of generation 2"


def test_a_third_generation_is_none_of_both(lab: Lab) -> None:
    other = generation(lab, 7)
    case = lab.case(failing(lab, [OVER], {OVER.name: TOLD}), retried(lab, {"t1": other}))
    (violation,) = violations("CRASH-03", case)
    assert violation.observed == "weights of neither, counters of neither"


def test_what_no_load_brings_back_is_left_to_other_rules(lab: Lab) -> None:
    loads = retried(lab, {"t1": generation(lab, 1, step=2)})
    for journal, seen in zip(loads.ranks, generation(lab, 3, step=99), strict=True):
        journal.snapshots[LAST.tree] = seen  # the counter never comes back
    case = lab.case(failing(lab, [OVER], {OVER.name: TOLD}), loads)
    assert not subjects("CRASH-03", case)


def test_a_refusal_is_a_loss_over_a_checkpoint_and_right_at_a_new_path(lab: Lab) -> None:
    run = failing(lab, [OVER, FRESH], {OVER.name: TOLD, FRESH.name: TOLD})
    refused = ["EOFError: cut"] * 2
    case = lab.case(run, retried(lab, {"t1": refused, "t2": refused}))
    assert subjects("CRASH-03", case) == [OVER.name]
    assert not subjects("CRASH-04", case)


def test_a_refusal_by_some_is_wrong_everywhere(lab: Lab) -> None:
    run = failing(lab, [FRESH], {FRESH.name: TOLD})
    (violation,) = violations("CRASH-04", lab.case(run, retried(lab, {"t2": ["", "cut"]})))
    assert violation.ranks == (1,) and "loaded by the others" in violation.observed


def test_half_a_checkpoint_that_loads(lab: Lab) -> None:
    half = retried(lab, {"t2": generation(lab, 2, step=5)})
    case = lab.case(failing(lab, [FRESH], {FRESH.name: TOLD}), half)
    assert subjects("CRASH-04", case) == [FRESH.name]


def test_live_state_that_a_failed_save_has_changed(lab: Lab) -> None:
    run = failing(lab, [OVER], {OVER.name: TOLD})
    assert not subjects("CRASH-05", lab.case(run))
    for journal, seen in zip(run.ranks, generation(lab, 4), strict=True):
        journal.snapshots["after failed saves"] = seen
    assert "w" in subjects("CRASH-05", lab.case(run))


def leftovers(lab: Lab, failed: Counter[str], restarted: Counter[str] | None) -> list[str]:
    usual = Counter({"checkpoint": 1})
    runs = [lab.run("overwriting", facts={"names": values(usual)})]  # type: ignore[arg-type]
    runs.append(lab.run("failing", facts={"names": [failed] * 2}))
    facts = {} if restarted is None else {"names": [restarted] * 2}
    runs.append(lab.run("restarted", facts=facts))
    return subjects("CRASH-07", lab.case(*runs))


def test_what_is_left_behind(lab: Lab) -> None:
    usual, more = Counter({"checkpoint": 1}), Counter({"checkpoint": 1, "tmp.#": 2})
    assert leftovers(lab, usual, usual) == []
    assert leftovers(lab, usual, None) == []
    assert leftovers(lab, more, usual) == ["tmp.#"] == leftovers(lab, usual, more)


def test_nobody_was_killed(lab: Lab) -> None:
    absent = {"killed": "no rank writes"}
    case = lab.case(lab.run("killed", absent=absent), lab.run("restarted"))
    with pytest.raises(Unanswered) as caught:
        violations("CRASH-11", case)
    assert caught.value.not_offered == "no rank writes"


def test_after_a_kill(lab: Lab) -> None:
    moments = {f"generation {n}": generation(lab, n) for n in (1, 2)}
    killed = lab.run("killed", moments, facts={"doomed": [True, False]})
    after = {"after restart": generation(lab, 3), "loaded again": generation(lab, 3)}
    whole = {**after, "after load": generation(lab, 2)}
    good = lab.run("restarted", whole, facts={"refused": SILENT})
    assert not subjects("CRASH-11", lab.case(killed, good))
    bad = lab.run("restarted", after, facts={"refused": ["cut", "cut"]})
    assert subjects("CRASH-11", lab.case(killed, bad)) == ["checkpoint"]


def test_sharded_rules_ask_for_the_sharded_runs(lab: Lab) -> None:
    facts = {"names": [Counter({"checkpoint": 1})] * 2}
    runs = [lab.run(f"{n} sharded", facts=facts) for n in ("overwriting", "failing", "restarted")]
    assert not subjects("CRASH-19", lab.case(*runs))


def newest(lab: Lab, added: list[str], left: list[str], stuck: list[str]) -> list[str]:
    states = [FolderState("generation 4", "t4", "x", False)]
    states.append(FolderState("generation 5", "t5", "y", False))
    saving = lab.run(
        "advancing",
        {f"generation {n}": generation(lab, n) for n in range(1, 6)},
        facts={"added": [added] * 2, "left": [left] * 2, "stuck": stuck},
    )
    refusals = {f"t{n}: refused": SILENT for n in (4, 5)}
    loading = lab.run(
        "found",
        {f"t{n}": generation(lab, n) for n in (4, 5)},
        facts={"states": [states] * 2, **refusals},
    )
    return subjects("CRASH-31", lab.case(saving, loading))


def test_the_newest_stay(lab: Lab) -> None:
    added = ["a", "b", "c", "d"]
    assert newest(lab, added, ["c", "d", "latest"], SILENT) == []
    assert newest(lab, added, added, SILENT) == []
    assert newest(lab, added, ["a", "d"], SILENT) == ["a"]
    assert newest(lab, added, ["b", "c"], SILENT) == ["b", "c", "d"]
    assert newest(lab, added, ["d"], TOLD) == ["a removal that fails"]
    with pytest.raises(NotCovered):
        newest(lab, ["a", "", "", ""], ["a"], SILENT)


def first_save(lab: Lab, outcomes: Sequence[str], made: bool) -> list[str]:
    facts = {"first save": outcomes, "folder made": [made] * 2}
    return subjects("CRASH-34", lab.case(lab.run("advancing", facts=facts)))


def test_the_first_save_makes_its_folder(lab: Lab) -> None:
    assert first_save(lab, SILENT, made=True) == []
    # One rank makes it, and another one has not waited; nobody knows which.
    assert first_save(lab, ["", "FileNotFoundError: saved"], made=True) == ["the first save"]
    assert first_save(lab, TOLD, made=True) == ["the first save"]
    assert first_save(lab, ["", "FileNotFoundError: saved"], made=False) == ["the first save"]
    with pytest.raises(NotCovered, match="wants a folder that is there"):
        first_save(lab, TOLD, made=False)
