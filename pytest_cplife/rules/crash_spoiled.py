"""CRASH: plain checkpoints that have decayed since, or that a later version has written."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_CUT = ("nothing in it", "half of it missing", "its last byte missing")
_FLIPPED = "a flipped bit"
_LATER = "a later version"


def _refused(case: Case, damage: str) -> Iterator[Finding]:
    run = case["spoiled"]
    outcomes = run.fact(damage)
    accepted = tuple(rank for rank, outcome in enumerate(outcomes) if not outcome)
    if accepted:
        text = "loaded without a word"
        yield Violation(damage, "an exception on every rank", text, "spoiled", ranks=accepted)


@rule(
    "CRASH-25",
    "a cut plain checkpoint is refused",
    statement="A file that is empty, or of which half or the last byte is missing, ends load() in"
    " an exception on every rank.",
    why="Copies that were interrupted are the most frequent damage, and a rank that goes on alone"
    " hangs the job.",
    cause="An error that is caught for a fresh start instead, or that one rank keeps to itself.",
    runs=("spoiled",),
)
def cut_refused(case: Case) -> Iterator[Finding]:
    yield from completes(case, "CRASH-25", "spoiled")
    for damage in _CUT:
        yield from _refused(case, damage)


@rule(
    "CRASH-26",
    "a flipped bit in a plain checkpoint is found",
    statement="A file in which one bit of a tensor was flipped ends load() in an exception on every"
    " rank.",
    why="Disks and networks flip bits; a weight of 1e30 is noticed, one of 0.3 is not.",
    cause="No checksums: torch.load does not look at those that its archives have.",
    level="should",
    runs=("spoiled",),
)
def flipped_bit_found(case: Case) -> Iterator[Finding]:
    yield from _refused(case, _FLIPPED)


@rule(
    "CRASH-27",
    "a damaged plain checkpoint that is refused changes nothing",
    statement="After load() has refused a damaged file, weights, buffers and optimizer state are"
    " what they were before.",
    why="A caller that catches the error and tries an older checkpoint starts from a mixture.",
    cause="Parts that are put into the live objects as they are read.",
    level="should",
    runs=("spoiled",),
)
def refusal_changes_nothing(case: Case) -> Iterator[Finding]:
    run = case["spoiled"]
    for damage in (*_CUT, _FLIPPED):
        if all(run.fact(damage)):
            before, after = run.at(f"{damage}: before"), run.at(f"{damage}: after")
            parts = ("weights", "buffers", "optimizer state")
            yield from compare_parts(case, run, before, after, *parts, moment=f"after {damage}")


@rule(
    "CRASH-28",
    "a checkpoint of a later version is refused or warned of",
    statement="A file that says it is of a later version ends load() in an exception on every rank,"
    " or the load warns of its version.",
    why="What a later version has moved or renamed is read as if it were not there.",
    cause="A version that is written and never read.",
    level="should",
    runs=("spoiled",),
)
def later_version(case: Case) -> Iterator[Finding]:
    run = case["spoiled"]
    outcomes = run.fact(_LATER)
    accepted = tuple(rank for rank, outcome in enumerate(outcomes) if not outcome)
    if accepted and not any(run.fact("told")):
        edited = run.ranks[0].facts[f"edited {_LATER}"]
        text = "loaded without a word"
        yield Violation(edited, "an exception or a warning", text, "spoiled", ranks=accepted)
