"""From an adapter's class and a rule's findings to what is declared and what is decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pytest_cplife.adapter import ADAPTER_CAPABILITIES, LifecycleAdapter, overridden
from pytest_cplife.blame import Find
from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.lookalikes import lookalikes
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import Case, Declared, NotCovered
from pytest_cplife.rules.diagnosis import diagnose
from pytest_cplife.rules.events import unseen
from pytest_cplife.rules.model import Finding, Measurement, Outcome, Rule, Verdict, Violation
from pytest_cplife.rules.phases import owner


def declared_by(cls: type[LifecycleAdapter]) -> Declared:
    """What a sound adapter's class says of its trainer."""
    objects = cls.payload_objects
    return Declared(
        placeholders=tuple(cls.placeholders),
        plain_parameters=tuple(cls.plain_parameters),
        rng_policy=cls.rng_policy,
        save_points=cls.save_points,
        payload_objects=objects if isinstance(objects, bool) else tuple(objects),
        initialises_process_group=cls.initialises_process_group,
        bitwise_resume=cls.bitwise_resume,
        ema_spec=cls.ema_spec,
        loads_serially=bool(overridden(cls, LifecycleAdapter, ("load_serial",))),
        capabilities=overridden(cls, LifecycleAdapter, ADAPTER_CAPABILITIES),
        lookalikes=lookalikes(cls),
    )


def check_needs(rule: Rule, offered: Collection[str]) -> None:
    """
    Raises:
        NotCovered: a capability that `rule` needs is not among those `offered`.
    """
    lacking = [need for need in rule.needs if need not in offered]
    if lacking:
        several = "capabilities", "are"
        noun, verb = several if len(lacking) > 1 else ("capability", "is")
        raise NotCovered(f"{noun} {', '.join(lacking)} {verb} not offered")


_ENDS = {"start": "uninterrupted", "train": "uninterrupted", "save": "saving", "load": "resumed"}
"""The simplest run that has to come through a phase, by the phase."""


def told_by_simpler(verdict: Verdict, meshes: Iterable[MeshSpec], find: Find) -> str:
    """The rule of a simple run that ends as the smallest example does, "" where there is none.

    A trainer that cannot start, save or load at all is no finding of fuzzing.
    """
    for violation in verdict.violations[:1]:
        # "start raised TypeError", where a run came to an end; "start: weights", where not.
        phase = violation.moment.partition(" ")[0]
        for spec in meshes if phase in _ENDS else ():
            run = find(_ENDS[phase], spec)
            if run.failure is not None and run.failure.phase == phase:
                return owner(run.name, phase)
            if run.held_back:  # The save came to its end, and there is no file.
                return owner(run.held_back, "save")
    return ""


def apply(rule: Rule, mesh: str, case: Case) -> Verdict:
    """The verdict of a rule's check on the evidence in `case`; a pass that saw nothing is none.

    Raises:
        NotCovered: this trainer has nothing that the rule is about.
        Unanswered: the evidence does not reach as far as the rule asks.
    """
    # Whether the rule has anything to be about comes first (it may raise NotCovered).
    vacuous = unseen(case, rule.events)
    findings: list[Finding] = []
    try:
        for finding in rule.check(case):
            findings.append(finding)
    except CannotAssemble as problem:
        # Ranks that disagree on a tensor are a fault of the trainer, whichever rule meets it.
        findings.append(Violation("tensors", "parts that make up one tensor", str(problem)))
    violations = tuple(f for f in findings if isinstance(f, Violation))
    measurements = tuple(f for f in findings if isinstance(f, Measurement))
    if vacuous and not violations:
        text = "the evidence shows no such thing, so that a pass would mean nothing"
        violations = (Violation("vacuous", vacuous, text),)
    if not violations:
        return Verdict(rule.id, mesh, Outcome.PASSED, "", (), measurements)
    likely = diagnose(rule, case, violations)
    return Verdict(rule.id, mesh, Outcome.FAILED, likely, violations, measurements)
