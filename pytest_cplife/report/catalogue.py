"""``--cplife-rules``: the registry as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby

from pytest_cplife.rules.model import GROUPS, Rule

_WIDTH = 100


def list_rules(rules: Sequence[Rule]) -> str:
    """Every rule on one line, under its group."""
    lines = []
    for group, members in groupby(rules, key=lambda rule: rule.group):
        lines += ["", f"{group}: {GROUPS[group]}"]
        for rule in members:
            needs = f"  (needs {', '.join(rule.needs)})" if rule.needs else ""
            should = " (should)" if rule.level == "should" else ""
            lines.append(f"  {rule.id:<11}{rule.title}{should}{needs}")
    return "\n".join(
        [*lines, "", f"{len(rules)} rules; `pytest --cplife-rules ID` explains one"]
    ).lstrip()


def explain_rule(rule: Rule) -> str:
    """All that the registry knows about `rule`."""
    facts = (
        ("rule", rule.statement),
        ("costs", rule.why),
        ("cause", rule.cause),
        ("level", rule.level),
        ("needs", ", ".join(rule.needs) or "nothing beyond the required methods"),
        ("proof", ", ".join(rule.events) or "no particular event"),
        ("since", rule.since),
        ("select", f"-k {rule.id}"),
    )
    lines = [f"{rule.id} {rule.title}"]
    for label, text in facts:
        lines.append(
            textwrap.fill(text, _WIDTH, initial_indent=f"{label:<8}", subsequent_indent=" " * 8)
        )
    return "\n".join(lines)
