"""From what was judged to what the user asked for: strictness and expected failures.

Pure functions of a verdict, so that the same evidence always has the same outcome.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_cplife.expected import Expectation
from pytest_cplife.rules.model import Level, Outcome, Rule, Verdict


def settle(
    verdict: Verdict,
    rule: Rule,
    *,
    strict: bool,
    require: tuple[str, ...],
    level: Level,
    expectation: Expectation | None,
) -> Verdict:
    """The verdict that counts, after strictness, expectations and the level asked for."""
    verdict = _expect(_be_strict(verdict, rule, strict, require), expectation)
    return _advise(verdict, rule, level)


def _be_strict(verdict: Verdict, rule: Rule, strict: bool, require: tuple[str, ...]) -> Verdict:
    if verdict.outcome is not Outcome.NOT_COVERED:
        return verdict
    # A rule may need several capabilities; the reason names the one that is absent.
    required = [name for name in rule.needs if name in require and name in verdict.reason]
    if not strict and not required:
        return verdict
    asked = "--cplife-strict" if strict else f"--cplife-require={','.join(required)}"
    return replace(
        verdict,
        outcome=Outcome.FAILED,
        reason=f"not covered, which {asked} makes a failure: {verdict.reason}",
    )


def _expect(verdict: Verdict, expectation: Expectation | None) -> Verdict:
    if expectation is None:
        return verdict
    if verdict.outcome is Outcome.FAILED:
        return replace(verdict, outcome=Outcome.EXPECTED, reason=expectation.reason)
    if verdict.outcome is Outcome.PASSED:
        return replace(
            verdict,
            outcome=Outcome.FAILED,
            reason=(
                f"passes now, but is expected to fail ({expectation.reason}); take {expectation} "
                "out of the file of expected failures"
                + ("" if expectation.mesh else ", or name the meshes on which it fails")
            ),
        )
    return verdict


def _advise(verdict: Verdict, rule: Rule, level: Level) -> Verdict:
    # Only what the evidence shows is advice: a stale expectation, or a rule that had to be
    # covered, is a mistake whatever the rule's level.
    if rule.level == "must" or level == "should" or not verdict.violations:
        return verdict
    if verdict.outcome is not Outcome.FAILED:
        return verdict
    first = verdict.violations[0]
    return replace(
        verdict,
        outcome=Outcome.ADVICE,
        reason=f"{first.subject}: {first.observed}; it should be: {first.expected}",
    )
