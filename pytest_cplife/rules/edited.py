"""What became of edited files: refused on every rank alike, or loaded as what they stand for."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.parts import compare_parts

PARTS = ("weights", "optimizer state", "averages", "counters")


def refused(case: Case, run: str, edit: str) -> Iterator[Finding]:
    """Find ranks that have loaded the file."""
    evidence = case[run]
    took = tuple(rank for rank, outcome in enumerate(evidence.fact(edit)) if not outcome)
    if took:
        yield Violation(
            touched(evidence, edit),
            "an exception",
            "loaded without a word",
            f"a file with {edit}",
            ranks=took,
        )


def right_or_refused(
    case: Case, run: str, edit: str, *, without: Collection[str] = ()
) -> Iterator[Finding]:
    """Find ranks that disagree on the file, or what it was mistaken for; see `right`."""
    outcomes = case[run].fact(edit)
    count = float(sum(map(bool, outcomes)))
    yield Measurement(f"ranks that refused a file with {edit}", count, count)
    if any(outcomes) and not all(outcomes):
        alone = tuple(rank for rank, outcome in enumerate(outcomes) if outcome)
        yield Violation(edit, "accepted or refused by all", "by some", edit, ranks=alone)
    elif not any(outcomes):
        yield from right(case, run, edit, without=without)


def accepted(
    case: Case, run: str, edit: str, *, without: Collection[str] = ()
) -> Iterator[Finding]:
    """Find ranks that refused the file, or what it was mistaken for; see `right`."""
    case["resumed"].at("after load")  # What refuses its own file as it is says nothing here.
    no = [(rank, text) for rank, text in enumerate(case[run].fact(edit)) if text]
    if no:
        ranks = tuple(rank for rank, _ in no)
        yield Violation(edit, "loads", no[0][1], f"a file with {edit}", ranks=ranks)
    else:
        yield from right(case, run, edit, without=without)


def right(case: Case, run: str, edit: str, *, without: Collection[str] = ()) -> Iterator[Finding]:
    """Compare what a file that was accepted gave with what was saved.

    Args:
        without: subjects that may be what they like.
    """
    saved, loaded = case["saving"].at("before save"), case[run].at(f"{edit}: after")
    yield from compare_parts(
        case, case[run], saved, loaded, *PARTS, moment=f"after {edit}", without=without
    )


def touched(run: RunEvidence, edit: str) -> str:
    """What the edit says that it has changed."""
    return str(run.ranks[0].facts.get(f"edited {edit}", edit))
