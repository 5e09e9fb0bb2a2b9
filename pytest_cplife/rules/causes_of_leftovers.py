"""Patterns of what steers the next steps and is in no file: a mode, and buffers of a rank's own."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.evidence.run import Moment
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.pattern import Pattern, moment_of

_SAVES = (("saving", "before save"), ("early", "start"))


def _left_evaluating(case: Case, violations: Sequence[Violation]) -> bool:
    """Whether a save has found the model in training mode on a rank and left it in the other."""
    run, before = next(pair for pair in _SAVES if pair[0] in case.runs)
    moments = moment_of(case, run, before), moment_of(case, run, "after save")
    return any(a.training > b.training for a, b in zip(*(m.ranks for m in moments), strict=True))


def _own_buffers(state: Moment) -> set[str]:
    """Plain buffers that ranks have of their own."""
    return {
        name
        for name, records in state.buffers.items()
        if records[0].kind == "plain" and len({record.digest for record in records}) > 1
    }


def _buffers_of_ranks_lost(case: Case, violations: Sequence[Violation]) -> bool:
    saved = moment_of(case, "uninterrupted", "at save point")
    loaded = moment_of(case, "resumed", "after load").buffers
    return any(
        name in loaded and loaded[name][0].digest == saved.buffers[name][0].digest
        for name in _own_buffers(saved)
    )


def _buffers_part(case: Case, violations: Sequence[Violation]) -> bool:
    return bool(_own_buffers(moment_of(case, "parity", "after first step")))


LEFTOVERS = (
    Pattern(
        ("SAVE-08", "SAVE-09"),
        "the save leaves the model in evaluation mode, and the steps that follow are made without"
        " dropout",
        _left_evaluating,
    ),
    Pattern(
        ("GO-02", "GO-03", "GO-04", "GO-06"),
        "ranks had buffers of their own at the save (statistics of their own samples), and have the"
        " first rank's after the load, which is all that a file has room for: reduce what steers"
        " the training over the ranks",
        _buffers_of_ranks_lost,
    ),
    Pattern(
        ("GRAD-08",),
        "ranks have buffers of their own after the step (statistics of their own samples), which"
        " the serial run takes over all samples",
        _buffers_part,
    ),
)
"""The narrowest pattern comes first."""
