"""LOAD: what a trainer keeps besides: patience, best results, the data's position, a loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts, extra_values
from pytest_cplife.rules.registry import rule


@rule(
    "LOAD-16",
    "extra state comes back",
    statement="After a load every entry of named_extra_state() is on every rank what it was when"
    " saved.",
    why="A callback that has lost its patience stops late, one that has lost the best result"
    " overwrites it.",
    cause="State that lives in an object which nobody asks for its state, or rank 0's for all.",
    runs=("saving", "resumed"),
    needs=("named_extra_state",),
)
def extra_returns(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    yield from compare_parts(case, case["saving"], saved, loaded, "extra state")
    if not extra_values(saved):
        yield Violation("named_extra_state()", "some entries", "none", saved.label)
