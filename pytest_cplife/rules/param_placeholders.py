"""PARAM: modules that are not ported to the mesh yet."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule


@rule(
    "PARAM-06",
    "placeholders refuse to run",
    statement="A module that is not ported yet keeps its parameters, takes no part in"
    " optimisation, and its forward raises NotImplementedError.",
    why="A half-ported module that runs computes something; one that is optimised decays.",
    cause="Wrapping the real module instead of a placeholder, or an optimizer built over all"
    " parameters.",
    runs=("uninterrupted",),
    events=("placeholders",),
)
def placeholders_refuse(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    state = run.at("start")
    for rank, calls in enumerate(run.fact("placeholders")):
        for prefix, seen in calls.items():
            if not seen.startswith("NotImplementedError"):
                yield Violation(
                    prefix,
                    "forward raises NotImplementedError",
                    seen or "no module of that name",
                    state.label,
                    ranks=(rank,),
                )
    held = [name for name in state.parameters if case.declared.is_placeholder(name)]
    if not held:
        yield Violation("placeholders", "parameters kept", "none", state.label)
    optimised = {name for group in state.groups for name in group.names}
    for name in held:
        if name in optimised:
            yield Violation(name, "in no optimizer", "in one", state.label)


@rule(
    "PARAM-10",
    "placeholders name themselves",
    statement="The error with which a module that is not ported refuses to run has the module's"
    " name in it.",
    why="Whoever meets the error deep in a forward pass has to know which module is not there.",
    cause="A bare NotImplementedError, which says no more than that something is missing.",
    level="should",
    runs=("uninterrupted",),
    events=("placeholders",),
    presumes=("PARAM-06",),
)
def placeholders_name_themselves(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    for rank, calls in enumerate(run.fact("placeholders")):
        for prefix, seen in calls.items():
            # The last part will do: models are read by the names of attributes.
            name = prefix.rstrip(".").rpartition(".")[2]
            if name not in seen:
                moment = run.at("start").label
                yield Violation(prefix, f"an error that names {name!r}", seen, moment, (rank,))
