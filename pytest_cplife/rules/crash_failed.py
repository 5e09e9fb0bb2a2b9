"""CRASH: saves in which one rank cannot write. Each rule is one for each kind of checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import NotCovered
from pytest_cplife.rules.common import those
from pytest_cplife.rules.interruptions import (
    Interrupted,
    interrupted,
    loads_as_saved,
    told,
)
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.save_silence import unchanged


@interrupted(
    1,
    "a failed {word}save ends on every rank",
    level="should",
    statement="A {save} in which one rank cannot write ends on every rank, with an exception on all"
    " of them or on none.",
    why="The others wait for the rank that has left until a timeout ends the job, or go on without"
    " it.",
    cause="The rank that writes raises before a barrier, and nobody tells the others.",
    runs=("failing",),
)
def ends_everywhere(ask: Interrupted) -> Iterator[Finding]:
    run = ask.run("failing")
    if run.failure is not None and run.failure.phase == "failing save":
        yield Violation(
            run.ranks[run.failure.ranks[0]].facts["attempt"],
            "ends on every rank",
            run.failure.headline,
            ranks=run.failure.ranks,
            detail=run.failure.detail,
        )
        return
    for state, outcomes in _attempts(run):
        raising = tuple(rank for rank, outcome in enumerate(outcomes) if outcome)
        if raising and len(raising) < len(outcomes):
            rest = [rank for rank in range(len(outcomes)) if rank not in raising]
            yield Violation(
                state.name,
                "an exception on all ranks or on none",
                f"{outcomes[raising[0]]}; {those(rest)} {'return' if len(rest) > 1 else 'returns'}",
                ranks=raising,
            )
    if len(run.ranks) == 1:
        raise NotCovered("one rank has no others to tell")


def _attempts(run: RunEvidence) -> list[tuple[FolderState, list[str]]]:
    """What each disturbed save left, and how it ended on each rank.

    Raises:
        NotCovered: none was disturbed.
    """
    attempts = [(state, run.fact(state.name)) for state in told(run, "states")]
    if not any(any(outcomes) for _, outcomes in attempts) and not _unsaved(run, attempts):
        raise NotCovered("no write of a rank could be made to fail")
    return attempts


def _unsaved(run: RunEvidence, attempts: list[tuple[FolderState, list[str]]]) -> bool:
    return any(state.checkpoint in ("", told(run, "older checkpoint")) for state, _ in attempts)


@interrupted(
    2,
    "a {word}save that was not made is not told as made",
    level="must",
    statement="Where {save} returns on every rank although one rank could not write, the path holds"
    " what was to be saved.",
    why="The older checkpoint is deleted, and the job ends, in the belief that there is a newer"
    " one.",
    cause="An error of the disk that is caught and put down in a log.",
    runs=("failing", "retried"),
)
def not_told_as_made(ask: Interrupted) -> Iterator[Finding]:
    run = ask.run("failing")
    attempts, older = _attempts(run), told(run, "older checkpoint")
    generations = ask.generations("failing", "retried", "generation 2")
    for state, outcomes in attempts:
        if any(outcomes):
            continue
        if state.checkpoint in ("", older):
            left = "the older checkpoint is there" if state.checkpoint else "nothing is there"
            text = f"no exception, and {left}"
            yield Violation(state.name, "an exception or the new checkpoint", text)
        else:
            yield from generations.judge(state)


@interrupted(
    3,
    "a failed {word}save leaves the older checkpoint",
    level="should",
    statement="After a {save} over an older checkpoint that failed on one rank, the path loads as"
    " the older or the newer one, whole.",
    why="The disk is full, the job restarts, and the only checkpoint is gone.",
    cause="The new checkpoint is written over the old one, or the old one is removed first.",
    runs=("failing", "retried"),
)
def leaves_the_older(ask: Interrupted) -> Iterator[Finding]:
    ask.needs_replacement("failing")
    run = ask.run("failing")
    attempts, older = _attempts(run), told(run, "older checkpoint")
    generations = ask.generations("failing", "retried", "generation 1", "generation 2")
    for state, outcomes in attempts:
        if any(outcomes) and not state.fresh and state.checkpoint != older:
            yield from generations.judge(state)


@interrupted(
    4,
    "a failed {word}save leaves no half checkpoint",
    level="must",
    statement="After a {save} to a new path that failed on one rank, {load} refuses what is there"
    " on every rank, if it is not whole.",
    why="A restart takes it for a checkpoint and goes on from a mixture.",
    cause="What marks a checkpoint as finished is written before the data, or nothing marks it.",
    runs=("failing", "retried"),
)
def leaves_no_half(ask: Interrupted) -> Iterator[Finding]:
    attempts = _attempts(ask.run("failing"))
    generations = ask.generations("failing", "retried", "generation 2")
    for state, outcomes in attempts:
        if any(outcomes) and state.fresh and state.checkpoint:
            yield from generations.judge(state, refusal_is_right=True)


@interrupted(
    5,
    "a failed {word}save changes nothing that lives",
    level="must",
    statement="After {save} has failed, weights, buffers, optimizer state, averages, schedules,"
    " counters and random streams are what they were.",
    why="The job goes on, with averaged weights in the model or state that was moved away.",
    cause="State that is exchanged or converted for the save, and put back only where it succeeds.",
    runs=("failing",),
)
def changes_nothing(ask: Interrupted) -> Iterator[Finding]:
    run = ask.run("failing")
    _attempts(run)
    before, after = run.at("generation 2"), run.at("after failed saves")
    yield from unchanged(ask.case, run, before, after)


@interrupted(
    6,
    "{word}saving works again after it failed",
    level="must",
    statement="After {save} has failed, a step completes, and the next {save} gives a checkpoint"
    " that loads as what was saved.",
    why="A disk that was full for a minute need not be the end of the job.",
    cause="A lock, a temporary file or a pending write of the failed save in the way of the next.",
    runs=("failing", "retried"),
)
def works_again(ask: Interrupted) -> Iterator[Finding]:
    yield from ask.completes("failing", "retried")
    yield from loads_as_saved(ask, "failing", "retried")


@interrupted(
    7,
    "nothing is left behind of an interrupted {word}save",
    level="should",
    statement="Once {save} has succeeded again, after one that failed and in a restart after one"
    " that was killed, the folder holds what it holds after an undisturbed {save}.",
    why="Every interruption leaves as much as a checkpoint, until the disk is full of them.",
    cause="Temporary names that are new for every save, which nobody removes.",
    runs=("overwriting", "failing", "restarted"),
)
def nothing_left(ask: Interrupted) -> Iterator[Finding]:
    wanted: Counter[str] = told(ask.run("overwriting"), "names")
    told(ask.run("failing"), "names")
    for name in ("failing", "restarted"):
        run = ask.run(name)
        # Where no rank can be killed there is no restart.
        left = run.ranks[0].facts.get("names", wanted) - wanted if run.ranks else Counter()
        for entry, count in left.items():
            yield Violation(entry, "not there", f"{count} more than usual", f"{name}: save again")
