"""ADAPTER: the adapter itself. Where this fails every other rule is blocked."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule


@rule(
    "ADAPTER-01",
    "the adapter has its shape",
    statement="The adapter can be imported, is a LifecycleAdapter, has every required method, is"
    " built without arguments, and its attributes have values that the suite knows.",
    why="Nothing else can be asked before this holds.",
    cause="A misspelled path, a method of another name, or an attribute of another type.",
    runs=(),
)
def adapter_shape(case: Case) -> Iterator[Finding]:
    for problem in case.declared.problems:
        yield Violation("adapter", "a usable LifecycleAdapter", problem)
