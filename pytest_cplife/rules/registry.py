"""The registry: every rule once, in the order of the lifecycle."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest_cplife.rules
from pytest_cplife.rules.model import GROUPS, PRESUMED, Check, Rule

_RULES: dict[str, Rule] = {}


def rule(id: str, title: str, **data: Any) -> Callable[[Check], Check]:
    """Register the decorated check as the rule `id`; `data` is the rest of :class:`Rule`."""

    def register(check: Check) -> Check:
        if id in _RULES:
            raise ValueError(f"rule {id} is registered twice")
        group = id.partition("-")[0]
        if group not in GROUPS:
            raise ValueError(f"rule {id} belongs to no group; groups are {', '.join(GROUPS)}")
        data.setdefault("level", "must")
        data.setdefault("presumes", PRESUMED.get(id, PRESUMED.get(group, ())))
        _RULES[id] = Rule(id=id, title=title, check=check, **data)
        return check

    return register


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by group in the order of the lifecycle and then by number."""
    for module in _modules():
        import_module(module)
    order = {group: position for position, group in enumerate(GROUPS)}
    return tuple(sorted(_RULES.values(), key=lambda rule: (order[rule.group], rule.id)))


@cache
def _modules() -> tuple[str, ...]:
    """The modules that register rules: one per group, and parts of a large one as GROUP_PART."""
    groups = {group.lower() for group in GROUPS}
    names = (module.name for module in iter_modules(pytest_cplife.rules.__path__))
    return tuple(f"pytest_cplife.rules.{n}" for n in names if n.partition("_")[0] in groups)


def rules_of(group: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in all_rules() if rule.group == group)


def get_rule(id: str) -> Rule:
    """The rule `id`.

    Raises:
        KeyError: there is none; the message lists the ids of its group, or all groups.
    """
    rules = {rule.id: rule for rule in all_rules()}
    if id not in rules:
        group = id.partition("-")[0].upper()
        near = [known for known in rules if known.startswith(f"{group}-")] or list(GROUPS)
        raise KeyError(f"no rule {id!r}; there are {', '.join(near)}")
    return rules[id]
