"""CRASH: a folder of checkpoints, of which a restart takes the newest whole one."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.crash_killed import UNFOLLOWED
from pytest_cplife.rules.generations import Generations, differences
from pytest_cplife.rules.interruptions import SAVED_PARTS, told
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_NEEDS = ("save_into", "load_newest")
_NONE = "load_newest() finds no checkpoint"
_WITHOUT = "without a file"


@rule(
    "CRASH-29",
    "the newest checkpoint of a folder is found",
    statement="In fresh processes load_newest() restores, on every rank, what save_into() has saved"
    " last into that folder.",
    why="A restart goes back by days, or begins at step 0, and nobody looks at the step it says.",
    cause="Names compared as text (step-9 after step-10), a pointer that stays, or ranks that look"
    " for themselves.",
    runs=("advancing", "found"),
    needs=_NEEDS,
)
def newest_found(case: Case) -> Iterator[Finding]:
    yield from completes(case, "CRASH-29", "advancing", "found")
    saving, loading = case["advancing"], case["found"]
    last = told(loading, "states")[0]
    saved, loaded = saving.at(last.name), loading.at(last.tree)
    yield from compare_parts(case, saving, saved, loaded, *SAVED_PARTS)


@rule(
    "CRASH-30",
    "an unfinished checkpoint is never the newest",
    statement="A job killed at any instant of save_into() leaves a folder from which load_newest()"
    " restores the former or the new checkpoint, whole.",
    why="The restart fails on half a checkpoint, beside a good one, until somebody removes it.",
    cause="A pointer that moves before the data are there, a newest by name or date that nobody"
    " checks, or an old one that is removed too early.",
    runs=("advancing", "found"),
    needs=_NEEDS,
)
def never_unfinished(case: Case) -> Iterator[Finding]:
    saving, loading = case["advancing"], case["found"]
    _, _, *instants = told(loading, "states")
    if not instants:
        raise NotCovered(UNFOLLOWED)
    for state in instants:
        number = int(state.name.split()[1].rstrip(","))
        saved = (saving.at(f"generation {number - 1}"), saving.at(f"generation {number}"))
        yield from Generations(case, saved, loading, _lossy(case)).judge(state)


@rule(
    "CRASH-31",
    "the checkpoints that stay are the newest",
    statement="Of the checkpoints that save_into() leaves in a folder, none is older than one that"
    " was removed; and where nothing can be removed the save succeeds all the same.",
    why="The way back behind a bad step is gone, or a full disk of yesterday ends the job.",
    cause="Sorting by name as text or by date of another file, or a removal that raises.",
    level="should",
    runs=("advancing", "found"),
    needs=_NEEDS,
)
def newest_stay(case: Case) -> Iterator[Finding]:
    saving, loading = case["advancing"], case["found"]
    added, left = told(saving, "added"), set(told(saving, "left"))
    if not all(added):
        raise NotCovered("save_into() adds nothing to the folder that could stay")
    stays = [name in left for name in added]
    for number, name in enumerate(added, start=1):
        if stays[number - 1] and not all(stays[number - 1 :]):
            text = "there, though a newer one was removed"
            yield Violation(name, "removed, or all newer ones there", text, f"generation {number}")
    if not stays[-1]:
        yield Violation(added[-1], "there", "removed as soon as it was saved", "the last save")
    outcomes = saving.fact("stuck")
    raising = tuple(rank for rank, outcome in enumerate(outcomes) if outcome)
    full = told(loading, "states")[1]
    if raising:
        text = outcomes[raising[0]]
        yield Violation("a removal that fails", "no exception", text, full.name, ranks=raising)
    else:
        saved = (saving.at(full.name),)
        yield from Generations(case, saved, loading, _lossy(case)).judge(full)


@rule(
    "CRASH-39",
    "a newest checkpoint that lacks a file is passed over or refused",
    statement="Where a file of the newest checkpoint is missing, load_newest() restores an older"
    " one, whole, or ends in an exception, on all ranks alike; it does not say that there is none.",
    why="A copy that was not finished, or a clean-up by hand, sets the run back to step 0, and the"
    " checkpoint before it is removed by the next saves.",
    cause="A pointer to what is gone that is taken for no pointer, or ranks of which each looks for"
    " its own file.",
    runs=("advancing", "found"),
    needs=_NEEDS,
    presumes=("CRASH-29", "CRASH-30"),
)
def lacking_passed_over(case: Case) -> Iterator[Finding]:
    yield from completes(case, "CRASH-39", "found")
    saving, loading = case["advancing"], case["found"]
    outcomes = loading.fact(f"{_WITHOUT}: refused")
    added, left = told(saving, "added"), set(told(saving, "left"))
    there = [number for number, name in enumerate(added, start=1) if name in left]
    which = told(loading, f"{_WITHOUT}: which")
    denying = tuple(rank for rank, outcome in enumerate(outcomes) if _NONE in outcome)
    if denying and len(there) > 1:
        yield Violation(which, "an older checkpoint, or an exception", _NONE, "found", denying)
        return
    saved = tuple(saving.at(f"generation {number}") for number in there)
    judge = Generations(case, saved, loading, _lossy(case))
    yield from judge.judge_load(which, _WITHOUT, outcomes, refusal_is_right=True)


def _lossy(case: Case) -> frozenset[str]:
    """What an undisturbed load does not bring back, which other rules tell of."""
    saving, loading = case["advancing"], case["found"]
    last = told(loading, "states")[0]
    return frozenset(differences(case, loading, saving.at(last.name), loading.at(last.tree)))
