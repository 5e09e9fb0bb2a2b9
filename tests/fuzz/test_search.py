"""The search itself, on suites that need no ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_cplife.fuzz import search as module
from pytest_cplife.fuzz.profiles import GATE, Profile, explore
from pytest_cplife.fuzz.search import search
from pytest_cplife.rules.model import Violation


class Numbers:
    """Numbers of which some are wrong: those from 60 on in one way, from 40 on in another."""

    name = "numbers"
    cost = 1

    def __init__(self, limit: int = 40) -> None:
        self.limit = limit
        self.tried: list[int] = []

    def examples(self) -> SearchStrategy[int]:
        return st.integers(0, 100)

    def check(self, example: int) -> Sequence[Violation] | None:
        self.tried.append(example)
        if example < self.limit:
            return ()
        return (Violation("it", "", "", "large" if example >= 60 else "medium"),)

    def smaller(self, example: int) -> Iterator[int]:
        if example > 0:
            yield example - 1

    def show(self, example: int) -> str:
        return str(example)

    def to_json(self, example: int) -> dict[str, Any]:
        return {"it": example}

    def from_json(self, data: dict[str, Any]) -> int:
        return int(data["it"])


def test_shrinking_stays_with_the_kind_that_came_first() -> None:
    outcome = search(Numbers(), GATE)
    assert outcome.found is not None
    kind = outcome.found.violations[0].moment
    assert outcome.found.example == {"large": 60, "medium": 40}[kind]


def test_no_example_is_tried_twice() -> None:
    suite = Numbers()
    outcome = search(suite, GATE)
    assert len(suite.tried) == len(set(suite.tried)) == outcome.examples


def test_gate_tries_the_same_examples_every_time() -> None:
    first, second = Numbers(1000), Numbers(1000)
    search(first, GATE)
    search(second, GATE)
    assert first.tried == second.tried and len(first.tried) > 50


def test_shrinking_ends_with_its_budget_and_keeps_what_it_has() -> None:
    suite = Numbers()
    outcome = search(suite, Profile("any", examples=300, shrinks=2, derandomize=True))
    assert outcome.found is not None and outcome.found.example >= 40
    assert outcome.examples <= outcome.first_at + 2


def test_explore_goes_on_until_its_time_is_over_and_tells_its_seed() -> None:
    outcome = search(Numbers(1000), explore(0.5))
    assert outcome.found is None and outcome.seed is not None
    assert 0.5 <= outcome.seconds < 5


def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is one second later whenever somebody looks at it."""
    seconds = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))


def test_round_that_runs_out_of_time_is_the_beginning_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, part = Numbers(1000), Numbers(1000)
    profile = Profile("any", examples=40, shrinks=1, derandomize=True)
    search(whole, profile)
    ticking(monkeypatch)
    search(part, replace(profile, seconds=10.0))
    assert 1 < len(part.tried) < len(whole.tried)
    assert part.tried == whole.tried[: len(part.tried)]


def test_one_example_is_tried_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch)
    suite = Numbers(1000)
    search(suite, Profile("any", examples=40, shrinks=1, derandomize=True, seconds=0.0))
    assert len(suite.tried) == 1


def test_examples_that_say_nothing_are_told_apart() -> None:
    class Blind(Numbers):
        def check(self, example: int) -> Sequence[Violation] | None:
            return super().check(example) if example % 2 else None

    outcome = search(Blind(1000), GATE)
    assert 0 < outcome.judged < outcome.examples


def test_what_is_to_be_first_is() -> None:
    suite = Numbers()
    outcome = search(suite, GATE, first=[3, 61, 99])
    assert suite.tried[:2] == [3, 61] and 99 not in suite.tried
    assert outcome.found is not None and outcome.found.example == 60
