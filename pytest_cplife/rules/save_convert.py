"""SAVE: conversions between live and plain state leave both sides to themselves."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.save_silence import unchanged


@rule(
    "SAVE-16",
    "what a conversion returns is its own",
    statement="Overwriting what to_plain() or realign() has returned changes no live tensor, and"
    " the trees that they were given, their tensors and their classes, stay as they were.",
    why="A checkpoint that is edited, or written in the background, would otherwise train along.",
    cause="cpu() of a tensor that is there already, detach() without a clone, or entries of the"
    " caller's dict that are replaced in place.",
    runs=("converted",),
    needs=("to_plain",),
)
def nothing_shared(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SAVE-16", "converted")
    run = case["converted"]
    before, after = run.at("before"), run.at("after")
    yield from unchanged(case, run, before, after)
    yield from _kept(run.fact("given"), "given to to_plain()")
    if any("given to realign" in journal.absent for journal in run.ranks):
        return
    yield from _kept(run.fact("given to realign"), "given to realign()")
    yield from unchanged(case, run, before, run.at("after realign"))


def _kept(changed: list[list[str]], moment: str) -> Iterator[Violation]:
    for rank, paths in enumerate(changed):
        for path in paths:
            yield Violation(path, "as it was given", "changed", moment, ranks=(rank,))
