"""Searching for an example that breaks something, and making it small."""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from hypothesis import given, seed
from hypothesis.strategies import SearchStrategy

from pytest_cplife.fuzz.profiles import Profile
from pytest_cplife.rules.model import Violation

Example = TypeVar("Example", bound=Hashable)


class Suite(Protocol[Example]):
    """Something that is fuzzed.

    Attributes:
        name: how reports and replay files call it.
        cost: how many examples of a cheap suite one of this suite's is worth.
    """

    name: str
    cost: int

    def examples(self) -> SearchStrategy[Example]:
        """The examples to draw from."""
        ...

    def check(self, example: Example) -> Sequence[Violation] | None:
        """Try one; None where it says nothing. Violations of one kind have one `moment`."""
        ...

    def smaller(self, example: Example) -> Iterable[Example]:
        """Neighbours of an example that are simpler, the simplest first."""
        ...

    def show(self, example: Example) -> str:
        """The example for a reader: mesh, shapes, placements, plan."""
        ...

    def to_json(self, example: Example) -> dict[str, Any]: ...

    def from_json(self, data: dict[str, Any]) -> Example: ...


@dataclass(frozen=True, slots=True)
class Found(Generic[Example]):
    """The smallest example that was found to break something, and what it broke."""

    example: Example
    violations: tuple[Violation, ...]


@dataclass(slots=True)
class Search(Generic[Example]):
    """The outcome of a search.

    Attributes:
        examples: how many different ones were tried, shrinking included.
        judged: how many of them said anything.
        first_at: how many it took until the first failure; 0 where there was none.
        seconds: how long it took.
        seed: of the last round; None where nothing was random.
        found: what was found.
    """

    examples: int = 0
    judged: int = 0
    first_at: int = 0
    seconds: float = 0.0
    seed: int | None = None
    found: Found[Example] | None = None


class _Failing(Exception):
    """The one exception that hypothesis sees, so that it sees one kind of failure."""


@dataclass(slots=True)
class _Trial(Generic[Example]):
    """Tries examples once each, and stays on the kind of failure that came first."""

    suite: Suite[Example]
    profile: Profile
    end: float | None
    search: Search[Example]
    known: dict[Example, tuple[Violation, ...]] = field(default_factory=dict)
    kind: str | None = None
    shrinks: int = 0

    def __call__(self, example: Example) -> None:
        violations = self._outcome(example)
        if self.kind is None and violations:
            self.kind = violations[0].moment
            self.search.first_at = self.search.examples
        same = tuple(v for v in violations if v.moment == self.kind)
        if same:
            # Both ways of shrinking run their smallest example last.
            self.search.found = Found(example, same)
            raise _Failing

    def _outcome(self, example: Example) -> tuple[Violation, ...]:
        # What is known stays as it was, so that nothing is flaky however the budget ends.
        if example not in self.known:
            if self._spent():
                return ()
            self.search.examples += 1
            self.shrinks += self.kind is not None
            violations = self.suite.check(example)
            self.search.judged += violations is not None
            self.known[example] = tuple(violations or ())
        return self.known[example]

    def _spent(self) -> bool:
        if self.kind is not None:
            return self.shrinks >= self.profile.shrinks_of(self.suite.cost)
        # One is tried however long everything before it took: a search without is no evidence.
        return self.over and self.search.examples > 0

    @property
    def over(self) -> bool:
        """Whether the time for finding a failure is."""
        return self.end is not None and time.monotonic() >= self.end


def search(
    suite: Suite[Example], profile: Profile, first: Iterable[Example] = ()
) -> Search[Example]:
    """Look for a failure of `suite` within the budget of `profile`.

    Args:
        first: examples to try before any is drawn.
    """
    start = time.monotonic()
    outcome: Search[Example] = Search()
    end = None if profile.seconds is None else start + profile.seconds
    again = end is not None and not profile.derandomize
    trial = _Trial(suite, profile, end, outcome)
    with suppress(_Failing):
        for example in first:
            trial(example)
    while outcome.found is None:
        if not profile.derandomize:
            outcome.seed = random.SystemRandom().getrandbits(64)
        _round(trial, outcome.seed)
        if not again or trial.over:
            break
    _reduce(trial)
    outcome.seconds = time.monotonic() - start
    return outcome


def _reduce(trial: _Trial[Example]) -> None:
    """Go on to a simpler neighbour that fails likewise, until there is none."""
    found, progress = trial.search.found, True
    while found is not None and progress:
        progress = False
        for example in trial.suite.smaller(found.example):
            if example == found.example:
                continue
            with suppress(_Failing):
                trial(example)
                continue
            found, progress = trial.search.found, True
            break


def _round(trial: _Trial[Example], number: int | None) -> None:
    def one(example: Example) -> None:
        trial(example)

    pinned = trial.profile.settings(trial.suite.cost)
    test = pinned(given(trial.suite.examples())(one))
    with suppress(_Failing):
        (test if number is None else seed(number)(test))()
