"""CRASH: saves that are killed, and what a restart finds. One rule for each kind of checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import NotCovered
from pytest_cplife.rules.generations import Generations, differences
from pytest_cplife.rules.interruptions import (
    SAVED_PARTS,
    Interrupted,
    interrupted,
    loads_as_saved,
    told,
)
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.parts import compare_parts

UNFOLLOWED = "the save writes where it cannot be followed (neither in Python nor by torch.save)"


@interrupted(
    8,
    "a {word}save replaces an older checkpoint",
    level="must",
    statement="A {save} to a path where an older checkpoint lies replaces it, so that {load} gives"
    " the newer one, unless all ranks refuse it.",
    why="A job that keeps one path for its latest checkpoint resumes from the wrong one.",
    cause="An existing path that is taken as done, or files of the older checkpoint that stay.",
    runs=("overwriting", "recovered"),
)
def replaces(ask: Interrupted) -> Iterator[Finding]:
    ask.needs_replacement("overwriting")
    yield from ask.completes("overwriting", "recovered")
    yield from loads_as_saved(ask, "overwriting", "recovered")


@interrupted(
    9,
    "at no instant of a {word}save is the older checkpoint lost",
    level="should",
    statement="A job killed at any instant of a {save} over an older checkpoint leaves a path that"
    " loads as the older or the newer one, whole.",
    why="Preemption comes at any instant, and then the only checkpoint is gone.",
    cause="Writing in place, or an older checkpoint that is removed before the newer has its name.",
    runs=("overwriting", "recovered"),
)
def never_lost(ask: Interrupted) -> Iterator[Finding]:
    ask.needs_replacement("overwriting")
    generations = ask.generations("overwriting", "recovered", "generation 1", "generation 2")
    for state in _instants(ask, fresh=False):
        yield from generations.judge(state)


def _instants(ask: Interrupted, *, fresh: bool) -> list[FolderState]:
    states = [s for s in told(ask.run("recovered"), "states")[1:] if s.fresh == fresh]
    if not states:
        raise NotCovered(f"{UNFOLLOWED}; {ask.kind.id(11)} kills it in mid-write")
    return states


@interrupted(
    10,
    "at no instant is half a {word}checkpoint taken for one",
    level="must",
    statement="What a job killed at any instant of a {save} to a new path leaves there is refused"
    " by {load} on every rank, if it is not whole.",
    why="A restart takes it for a checkpoint and goes on from a mixture.",
    cause="What marks a checkpoint as finished is written before the data, or nothing marks it.",
    runs=("overwriting", "recovered"),
)
def never_half(ask: Interrupted) -> Iterator[Finding]:
    generations = ask.generations("overwriting", "recovered", "generation 1")
    for state in _instants(ask, fresh=True):
        yield from generations.judge(state, refusal_is_right=True)


@interrupted(
    11,
    "a rank killed in a {word}save leaves a whole checkpoint",
    level="should",
    statement="After a rank was killed in the middle of writing, in a {save} over an older"
    " checkpoint, the path loads in fresh processes as the older or the newer one, whole.",
    why="One node dies, the others notice, and what they do then decides what the restart finds.",
    cause="Writing in place, or ranks that finish or clean up what the dead one has begun.",
    runs=("killed", "restarted"),
)
def survives_a_kill(ask: Interrupted) -> Iterator[Finding]:
    saving, loading = _killed(ask), ask.run("restarted")
    saved, again = loading.at("after restart"), loading.at("loaded again")
    generations = Generations(
        ask.case,
        (saving.at("generation 1"), saving.at("generation 2")),
        loading,
        frozenset(differences(ask.case, loading, saved, again)),
    )
    yield from generations.judge_load("checkpoint", "after load", loading.fact("refused"))


def _killed(ask: Interrupted) -> RunEvidence:
    run = ask.run("killed")
    victims = [rank for rank, journal in enumerate(run.ranks) if journal.facts.get("doomed")]
    if not victims:
        run.fact("killed")  # Raises, with the reason that nobody was.
    return run


@interrupted(
    12,
    "a restart goes on from an interrupted {word}save",
    level="must",
    statement="Fresh processes that find what a killed {save} left, load it or begin anew, train a"
    " step and save to the same path; that checkpoint loads as what was saved.",
    why="A restart that fails on the remains of the last one needs somebody who removes them.",
    cause="Temporary files, locks or half directories that the next save takes for somebody"
    " else's.",
    runs=("killed", "restarted"),
)
def restarts(ask: Interrupted) -> Iterator[Finding]:
    _killed(ask)
    yield from ask.completes("restarted")
    run = ask.run("restarted")
    saved, again = run.at("after restart"), run.at("loaded again")
    yield from compare_parts(ask.case, run, saved, again, *SAVED_PARTS)
