"""A pattern of what differs and when, and what it usually means; helpers to look at one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_cplife.evidence.records import Record, TensorRecord
from pytest_cplife.evidence.run import Moment, Unanswered
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern and what it usually means.

    Attributes:
        rules: ids of the rules whose violations it can explain.
        text: what is seen, and the likely cause.
        fits: whether the violations of a case show it.
    """

    rules: tuple[str, ...]
    text: str
    fits: Callable[[Case, Sequence[Violation]], bool]


def subjects(violations: Sequence[Violation]) -> set[str]:
    """What broke the rule, by name."""
    return {violation.subject for violation in violations}


def moment_of(case: Case, run: str, moment: str) -> Moment:
    """The moment of a run that the case may not have.

    Raises:
        Unanswered: it has not.
    """
    if run not in case.runs:
        raise Unanswered(run, moment)
    return case[run].at(moment)


def alike(a: Sequence[Record], b: Sequence[Record]) -> bool:
    """Whether each rank holds on both sides the same value, or the same bytes of a tensor."""
    return len(a) == len(b) and all(
        x.digest == y.digest
        if isinstance(x, TensorRecord) and isinstance(y, TensorRecord)
        else x == y
        for x, y in zip(a, b, strict=True)
    )
