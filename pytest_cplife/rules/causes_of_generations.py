"""Patterns of a second checkpoint that went wrong, by what the first one held."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.parts import PARTS
from pytest_cplife.rules.pattern import Pattern, alike, moment_of, subjects


def _as_first_loaded(case: Case, violations: Sequence[Violation]) -> bool:
    """Whether the second load has brought back what the first one did."""
    first = moment_of(case, "unsharding", "after load")
    second = moment_of(case, "unsharding again", "after load")
    wrong = subjects(violations)
    tables = [(table(first), table(second)) for table in PARTS.values()]
    pairs = [(a[name], b.get(name, ())) for a, b in tables for name in wrong & a.keys()]
    return bool(pairs) and all(alike(a, b) for a, b in pairs)


GENERATIONS = (
    Pattern(
        ("DCP-25",),
        "the second checkpoint holds what was read from the first: loaded copies are saved again"
        " where the live objects should be",
        _as_first_loaded,
    ),
)
"""The narrowest pattern comes first."""
