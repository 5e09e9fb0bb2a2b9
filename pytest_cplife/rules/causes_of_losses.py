"""How an interrupted save loses a checkpoint: by what lies at its path when it is interrupted."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.pattern import Pattern

_TOLD = ("CRASH-01", "CRASH-13")
_LOST = ("CRASH-03", "CRASH-15", "CRASH-09", "CRASH-21")


def _states(case: Case, violations: Sequence[Violation]) -> list[FolderState]:
    """The folders that the violations are about."""
    named = {violation.subject for violation in violations}
    return [
        state
        for run in case.runs.values()
        for journal in run.ranks[:1]
        for state in journal.facts.get("states", ())
        if isinstance(state, FolderState) and state.name in named
    ]


def _left_waiting(case: Case, violations: Sequence[Violation]) -> bool:
    return any(" waits in " in violation.observed for violation in violations)


def _went_on(case: Case, violations: Sequence[Violation]) -> bool:
    return all(violation.observed.endswith((" return", " returns")) for violation in violations)


def _nothing_there(case: Case, violations: Sequence[Violation]) -> bool:
    return any(not state.checkpoint for state in _states(case, violations))


def _mixed(case: Case, violations: Sequence[Violation]) -> bool:
    return any(" of generation " in violation.observed for violation in violations)


def _torn(case: Case, violations: Sequence[Violation]) -> bool:
    return any(state.checkpoint for state in _states(case, violations))


LOSSES = (
    Pattern(
        _TOLD,
        "the rank that could not write has left with its exception, and the others wait for it in"
        " the save's last collective: the outcome has to reach them (a broadcast) before anybody"
        " raises",
        _left_waiting,
    ),
    Pattern(
        _TOLD,
        "ranks that do not write return without asking what has become of the file",
        _went_on,
    ),
    Pattern(
        _LOST,
        "nothing lies at the path: the older checkpoint is removed, or moved away, before the newer"
        " has its name",
        _nothing_there,
    ),
    Pattern(
        _LOST,
        "parts of two checkpoints lie at the path: they are replaced one after the other, where one"
        " rename should replace them all",
        _mixed,
    ),
    Pattern(
        _LOST,
        "half of the newer checkpoint lies at the path: it is written in place, not beside it and"
        " renamed when it is whole",
        _torn,
    ),
)
"""The narrowest pattern comes first."""
