"""Why a rule could not be answered: which earlier failure, or which absent capability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_cplife.evidence.run import RunEvidence, Unanswered
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.diagnosis import diagnose
from pytest_cplife.rules.model import PURPOSE, Outcome, Rule, Verdict, Violation
from pytest_cplife.rules.phases import owner
from pytest_cplife.scenarios.table import RUNS

Find = Callable[[str, MeshSpec | None], RunEvidence]

_SIMPLER = {
    "mesh": ("uninterrupted", "saving", "resumed"),
    "serial": ("uninterrupted", "saving", "resumed", "serial", "serial saving"),
    "groupless": ("uninterrupted",),
}
"""By kind of world the runs whose parts others repeat: a start, a save or a load that fails there
is told once."""
_ELSEWHERE = {
    **dict.fromkeys(("moved", "moved over", "returned", "returned over"), ("crossed", "load")),
    **dict.fromkeys(
        ("moved over sharded", "returned over sharded"), ("resharding", "load sharded")
    ),
}
"""By run the simplest one that loads what another mesh has saved, and in which phase."""


def told_before(case: Case, find: Find) -> str:
    """The rule of a simpler run that a run of `case` fails alike, "" where there is none."""
    for run in case.runs.values():
        if run.failure is not None and run.spec is not None and run.spec == case.spec:
            teller = _teller(run, find)
            if teller != owner(run.name, run.failure.phase):
                return teller
    return ""


def _teller(run: RunEvidence, find: Find) -> str:
    """The rule that tells how `run` ended: that of the simplest run that ends in that phase."""
    assert run.failure is not None
    for name, phase in _simpler(run, run.failure.phase) if run.spec is not None else ():
        failure = find(name, run.spec).failure
        if failure is not None and failure.phase == phase:
            return owner(name, phase)
    return owner(run.name, run.failure.phase)


def _simpler(run: RunEvidence, phase: str) -> Iterator[tuple[str, str]]:
    """The runs that have a part like `phase` of `run`, and what that is called there."""
    for name in _SIMPLER[RUNS[run.name].world]:
        if name == run.name:
            return
        yield name, phase
    if phase == "load" and run.name in _ELSEWHERE:
        yield _ELSEWHERE[run.name]


def blame(rule: Rule, mesh: str, case: Case, missing: Unanswered, find: Find) -> Verdict:
    """The verdict on a rule whose evidence does not reach as far as it asks.

    Args:
        find: gives the evidence of a run on a mesh, for the runs that had to come first.

    Raises:
        Unanswered: nothing explains it, which is a fault of the suite.
    """
    if missing.not_offered:
        return Verdict(rule.id, mesh, Outcome.NOT_COVERED, missing.not_offered)
    for run, phase in _upstream(case, missing.run, find):
        if run.failure is not None:
            return _failed(rule, mesh, run, find)
        why = run.not_offered(missing.wanted)
        if why:
            return Verdict(rule.id, mesh, Outcome.NOT_COVERED, why)
        if phase and run.completed(phase):
            # The save came to its end, but there is no file: the save's own rule says so.
            return Verdict(rule.id, mesh, Outcome.BLOCKED, f"blocked by {owner(run.name, phase)}")
    raise missing


def _failed(rule: Rule, mesh: str, run: RunEvidence, find: Find) -> Verdict:
    assert run.failure is not None
    blocker = _teller(run, find)
    if blocker != rule.id:
        return Verdict(rule.id, mesh, Outcome.BLOCKED, f"blocked by {blocker}")
    violation = Violation(
        f"{run.failure.phase or 'before the first phase'} ({run.name})",
        "completes on every rank",
        run.failure.headline,
        ranks=run.failure.ranks,
        detail=run.failure.detail,
    )
    return Verdict(rule.id, mesh, Outcome.FAILED, violations=(violation,))


def _upstream(case: Case, name: str, find: Find) -> Iterator[tuple[RunEvidence, str]]:
    """The run itself, then those that had to come first and the phase that they had to reach."""
    named = [run for run in case.runs.values() if run.name == name]
    for run in named:
        yield run, ""
    for spec in [run.spec for run in named] or [case.spec]:
        yield from _sources(case, name, spec, find)


def _sources(
    case: Case, name: str, spec: MeshSpec | None, find: Find
) -> Iterator[tuple[RunEvidence, str]]:
    if name not in RUNS:
        return
    kind = RUNS[name]
    if kind.partner:
        spec = case.spec if spec == case.partner else case.partner
    for before, phase in (
        (kind.presumes, kind.source_phase),
        (kind.after, kind.source_phase),
        (kind.also_after, "save again"),
    ):
        if before:
            yield find(before, spec), phase
            yield from _sources(case, before, spec, find)


def in_light_of(
    rule: Rule, case: Case, verdict: Verdict, told: Mapping[str, Sequence[Violation]]
) -> Verdict:
    """The verdict of a rule that failed, when the rules that it presumes have failed, too.

    Args:
        told: by the ids of those rules, earliest first, what they have found.
    """
    if not told:
        return verdict
    if rule.group in PURPOSE:
        return replace(verdict, reason=f"{', '.join(told)} failed: begin there")
    if rule.budgeted:
        return Verdict(rule.id, verdict.mesh, Outcome.BLOCKED, f"blocked by {next(iter(told))}")
    # Which one tells of each violation, "" for what is news.
    tellers = [
        next((id for id, found in told.items() if any(_names(id, one, v) for one in found)), "")
        for v in verdict.violations
    ]
    if all(tellers):
        first = next(id for id in told if id in tellers)
        return Verdict(rule.id, verdict.mesh, Outcome.BLOCKED, f"blocked by {first}")
    news = tuple(v for v, id in zip(verdict.violations, tellers, strict=True) if not id)
    return replace(verdict, violations=news, reason=diagnose(rule, case, news))


def _names(id: str, told: Violation, other: Violation) -> bool:
    """Whether what `told` of the rule `id` is about is what `other` is about."""
    if id == "OPT-01":  # It names a parameter and means all that is kept for it.
        return other.subject.startswith(f"{told.subject}[")
    if id == "OPT-04":  # A key of a param group, which others find with each parameter in it.
        return other.subject.endswith(f": {told.subject.rpartition(': ')[2]}")
    return other.subject == told.subject
