"""Noise from generators of a trainer's own, which nobody else can seed: whether it may be to blame.

Such a generator draws synthetic data as often as noise. Data is the same on every mesh and after
every resume, and so are the states that it is drawn from. Noise is drawn for each rank, and another
mesh has other ranks; and a resume under the policy ``"offset"`` draws it afresh.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Case

_OWN = "own draws "

OWN_NOISE = (
    "ranks draw noise from generators of the trainer's own, and other ranks draw other noise"
)

AFRESH = (
    "the resumed run draws noise from generators of the trainer's own, from states that the"
    " uninterrupted one never draws from, as rng_policy 'offset' says"
)


def other_draws(expected: RunEvidence, observed: RunEvidence, stretches: Sequence[str]) -> bool:
    """Whether the two runs draw from other states on the same samples.

    Where the samples are others, or nobody tells which they are, that is what differs first, and
    no noise excuses it.

    Args:
        stretches: what was trained, by the names under which both runs note it.
    """
    for stretch in stretches:
        samples = [_union(run, f"sample_ids {stretch}") for run in (expected, observed)]
        if not samples[0] or samples[0] != samples[1]:
            return False
        draws = [_union(run, f"{_OWN}{stretch}") for run in (expected, observed)]
        if draws[0] != draws[1]:
            return True
    return False


def drawn_afresh(case: Case) -> bool:
    """Whether a resumed run, by its policy, steps with other noise than the one never stopped.

    States that one has drawn from are no fresh ones: a resume that replays them is not excused.
    """
    if case.declared.rng_policy != "offset" or not case.runs:
        return False
    expected, *resumed = case.runs.values()
    known = {state for name in _stretches(expected) for state in _union(expected, f"{_OWN}{name}")}
    return any(_steps_afresh(expected, run, known) for run in resumed)


def _steps_afresh(expected: RunEvidence, resumed: RunEvidence, known: set[object]) -> bool:
    trained = _stretches(expected)
    for stretch in _stretches(resumed):
        same = stretch.partition(" from ")[0]
        if same not in trained:
            continue
        samples = _union(resumed, f"sample_ids {stretch}")
        if not samples or samples != _union(expected, f"sample_ids {same}"):
            return False
        if _union(resumed, f"{_OWN}{stretch}") - known:
            return True
    return False


def _stretches(run: RunEvidence) -> list[str]:
    """The names of what was trained, in order; of a later start they end in where it was."""
    facts = run.ranks[0].facts if run.ranks else {}
    return [name.removeprefix(_OWN) for name in facts if name.startswith(_OWN)]


def _union(run: RunEvidence, fact: str) -> set[object]:
    return {value for journal in run.ranks for value in journal.facts.get(fact, ())}
