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


@rule(
    "ADAPTER-02",
    "no name is nearly one of the protocol",
    level="should",
    statement="Adapter and run have no public method or attribute whose name is one slip away from"
    " one that the suite knows.",
    why="A capability under a misspelled name is never asked for, and its rules are not covered.",
    cause="A misspelled name; a name that is meant as it is begins better with an underscore.",
    runs=("uninterrupted",),
)
def names_known(case: Case) -> Iterator[Finding]:
    for found in (*case.declared.lookalikes, *case["uninterrupted"].fact("lookalikes")[0]):
        name, _, meant = found.partition(": ")
        yield Violation(name, "a name of the protocol", f"did you mean `{meant}`?")
