"""The tests of a rule group, derived from the registry: what a conformance module is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Rule, Verdict

MESHLESS_GROUPS = frozenset({"ADAPTER", "FUZZ"})
"""Groups whose rules are about the adapter as a whole, and so are judged once."""


class Judge(Protocol):
    """Whoever gathers the evidence that a rule needs and applies the rule to it."""

    def __call__(self, rule: Rule, spec: MeshSpec | None) -> Verdict: ...


class RuleTest(Protocol):
    """The test of one rule: a function that also knows its rule."""

    rule: Rule

    def __call__(self, judge: Judge, spec: MeshSpec | None = None) -> Verdict: ...


def rule_tests(group: str) -> dict[str, Callable[..., Verdict]]:
    """One test function per rule of `group`, by name, in the order of the rules."""
    from pytest_cplife.rules.registry import rules_of

    return {rule.test_name: _rule_test(rule) for rule in rules_of(group)}


def _rule_test(rule: Rule) -> Callable[..., Verdict]:
    def test(judge: Judge, spec: MeshSpec | None = None) -> Verdict:
        return judge(rule, spec)

    test.__name__ = test.__qualname__ = rule.test_name
    test.__doc__ = rule.statement
    test.rule = rule  # type: ignore[attr-defined]
    return test
