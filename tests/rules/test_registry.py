"""Every rule is stated, in full and once; what does not fit is refused."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import pytest

from pytest_cplife.adapter import ADAPTER_CAPABILITIES, RUN_CAPABILITIES
from pytest_cplife.fuzz.evidence import FUZZ_RUNS
from pytest_cplife.rules import registry
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.events import EVENTS
from pytest_cplife.rules.model import (
    GROUPS,
    Finding,
    Measurement,
    Outcome,
    Rule,
    Verdict,
    Violation,
)
from pytest_cplife.rules.registry import all_rules, get_rule, rule, rules_of
from pytest_cplife.scenarios.table import RUNS

RULES = all_rules()
by_id = pytest.mark.parametrize("one", RULES, ids=lambda rule: rule.id)


NAMES = {"torch", *ADAPTER_CAPABILITIES, *RUN_CAPABILITIES}


def test_there_are_rules() -> None:
    assert len(RULES) > 70
    assert {"PLACE", "PARAM", "GRAD", "SAVE", "LOAD", "OPT", "GO", "EMA"} <= {
        rule.group for rule in RULES
    }


@by_id
def test_a_rule_is_stated_in_full(one: Rule) -> None:
    assert re.fullmatch(r"[A-Z]+-\d\d", one.id)
    assert one.group in GROUPS
    assert one.level in ("must", "should")
    for text in (one.statement, one.why, one.cause):
        assert text.endswith("."), text
        # Only a name of code may begin with a small letter.
        first = text.split()[0]
        assert text[0].isupper() or first in NAMES or re.search(r"[_(=.0-9]", first), text
        assert not re.search(r"  | [.,](?!\w)", text), text
        assert text.count("(") == text.count(")")
    assert one.title[0].islower() and not one.title.endswith(".")
    assert 2 <= len(one.title.split()) <= 12
    home = rf"pytest_cplife\.rules\.{one.group.lower()}(_[a-z]+)?"
    assert re.fullmatch(home, one.check.__module__)


@by_id
def test_a_rule_names_what_exists(one: Rule) -> None:
    assert set(one.runs) <= set(FUZZ_RUNS if one.group == "FUZZ" else RUNS)
    assert set(one.events) <= set(EVENTS)
    assert set(one.needs) <= {*ADAPTER_CAPABILITIES, *RUN_CAPABILITIES}
    assert one.runs or one.group == "ADAPTER"
    assert len(set(one.runs)) == len(one.runs)


@by_id
def test_a_rule_that_asks_for_noise_gets_it(one: Rule) -> None:
    """The twin runs only for rules that are budgeted; for others every budget is 0."""
    source = inspect.getsource(one.check)
    if "noisy_at" in source or "noise." in source:
        assert one.budgeted


def test_names_are_unique() -> None:
    for key in ("id", "title", "test_name", "statement"):
        counts = Counter(getattr(rule, key) for rule in RULES)
        assert [name for name, count in counts.items() if count > 1] == []
    checks = Counter(rule.check for rule in RULES)
    assert max(checks.values()) == 1


def test_numbers_leave_no_gap() -> None:
    for group in {one.group for one in RULES}:
        numbers = [int(one.id.partition("-")[2]) for one in rules_of(group)]
        assert numbers == list(range(1, len(numbers) + 1))


def test_rules_come_in_the_order_of_the_lifecycle() -> None:
    order = [list(GROUPS).index(rule.group) for rule in RULES]
    assert order == sorted(order)
    assert [rule.id for rule in rules_of("SAVE")] == sorted(rule.id for rule in rules_of("SAVE"))
    assert rules_of("NOTHING") == ()


@by_id
def test_test_names_are_identifiers(one: Rule) -> None:
    assert one.test_name.isidentifier()
    assert one.test_name.startswith(f"test_{one.id.lower().replace('-', '_')}_")


def test_get_rule() -> None:
    assert get_rule("GO-02").id == "GO-02"


@pytest.mark.parametrize(
    ("asked", "told"),
    [("GO-99", "GO-01, GO-02"), ("go-02", "GO-01, GO-02"), ("NOPE-01", "ADAPTER, PLACE, PARAM")],
)
def test_an_unknown_id_is_answered_with_known_ones(asked: str, told: str) -> None:
    with pytest.raises(KeyError) as caught:
        get_rule(asked)
    assert f"no rule {asked!r}; there are" in caught.value.args[0]
    assert told in caught.value.args[0]


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Rule]]:
    rules: dict[str, Rule] = {}
    monkeypatch.setattr(registry, "_RULES", rules)
    yield rules


def nothing(case: Case) -> Iterator[Finding]:
    yield from ()


DATA = {"statement": "So it is.", "why": "Because.", "cause": "This.", "runs": ("saving",)}


def test_registering_twice_is_refused(empty: dict[str, Rule]) -> None:
    rule("GO-01", "some title", **DATA)(nothing)
    with pytest.raises(ValueError, match="GO-01 is registered twice"):
        rule("GO-01", "other title", **DATA)(nothing)
    assert empty["GO-01"].title == "some title"
    assert empty["GO-01"].level == "must"


def test_an_unknown_group_is_refused(empty: dict[str, Rule]) -> None:
    with pytest.raises(ValueError, match=r"NOPE-01 belongs to no group; groups are ADAPTER, PLACE"):
        rule("NOPE-01", "some title", **DATA)(nothing)
    assert empty == {}


def test_a_verdict_survives_json() -> None:
    violation = Violation("w", "a", "b", "m", (0, 1), 3, 0.5, 0.25, "note", "detail")
    verdict = Verdict(
        "GO-02", "dp2", Outcome.FAILED, "r", (violation,), (Measurement("m", 1.0, 2.0),), 0.5
    )
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert set(verdict.to_json()) == {field.name for field in fields(Verdict)}
