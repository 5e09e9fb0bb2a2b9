"""The map of the properties is whole, honest about rules, and printed as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_cplife.rules.model import GROUPS
from pytest_cplife.rules.registry import all_rules
from tests.properties import TABLE, VERDICTS, Property, read_map, table

MAP = read_map()
REGISTERED = [rule.id for rule in all_rules()]
# Only a name of code may begin a sentence with a small letter.
SENTENCE = re.compile(r"(?:[A-Z]|[a-z]+_?[a-z_]*\().*[^.\s]\.")
RULE_ID = re.compile(rf"\b(?:{'|'.join(GROUPS)})-\d\d\b")
by_number = pytest.mark.parametrize("one", MAP.properties, ids=lambda one: str(one.number))


def test_every_property_is_there_once() -> None:
    assert [one.number for one in MAP.properties] == list(range(1, 158))
    titles = [one.title for one in MAP.properties]
    assert len(set(titles)) == len(titles)


@by_number
def test_a_property_is_answered(one: Property) -> None:
    if one.rules:
        assert not one.verdict and not one.reason
        assert len(set(one.rules)) == len(one.rules)
        assert not one.open or SENTENCE.fullmatch(one.open)
    else:
        assert one.verdict in VERDICTS
        assert SENTENCE.fullmatch(one.reason)
        assert not one.open


@by_number
def test_a_property_names_what_exists(one: Property) -> None:
    ids = {*one.rules, *RULE_ID.findall(f"{one.open} {one.reason}")}
    assert ids <= set(REGISTERED)
    systems = [*one.tested, *one.weak, *one.contrary]
    assert set(systems) <= set(MAP.systems)
    assert len(set(systems)) == len(systems)


@by_number
def test_a_property_is_stated_in_a_line(one: Property) -> None:
    assert 3 <= len(one.title.split()) <= 25
    assert not one.title.endswith(".")
    assert "|" not in one.title + one.open + one.reason


def test_every_rule_answers_for_a_property_or_says_why_not() -> None:
    named = {rule for one in MAP.properties for rule in one.rules}
    assert [rule for rule in REGISTERED if rule not in named and rule not in MAP.beyond] == []
    assert [rule for rule in MAP.beyond if rule in named] == []
    assert set(MAP.beyond) <= set(REGISTERED)
    assert all(SENTENCE.fullmatch(reason) for reason in MAP.beyond.values())


def test_the_table_is_up_to_date() -> None:
    """Where this fails: ``python -m tests.properties``."""
    assert TABLE.read_text(encoding="utf-8") == table(MAP)


def test_the_table_counts_what_it_shows() -> None:
    text = table(MAP)
    rows = re.findall(r"^\| \d+ \| .*$", text, re.M)
    unanswered = [row for row in rows if "| **not yet**: " in row or "| **cannot**: " in row]
    assert len(rows) == len(MAP.properties)
    assert f"**{len(rows) - len(unanswered)} are mapped**" in text
    assert f"of {sum('. *Open*: ' in row for row in rows)} of these some part is still open" in text


def test_a_key_that_is_unknown_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    path.write_text('[systems]\n[[property]]\nnumber = 1\nrule = "GO-01"\n[[beyond]]\n')
    with pytest.raises(ValueError, match="has unknown rule"):
        read_map(path)
