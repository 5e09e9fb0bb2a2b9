"""PLACE: parameters lie as the adapter's plan says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.rules.case import Case, under
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.registry import rule


@rule(
    "PLACE-07",
    "parameters lie as planned",
    statement="Every parameter is a DTensor on the mesh dimensions, and with the placements, that"
    " placement_plan() gives its name; what the plan leaves plain is plain.",
    why="A weight that is replicated where it was to be cut costs its memory on every rank; one"
    " that is cut along another dimension is not the one that the kernels expect.",
    cause="A pattern of names that no longer matches, or a wrapper that takes what is left over.",
    runs=("uninterrupted",),
    needs=("placement_plan",),
)
def as_planned(case: Case) -> Iterator[Finding]:
    run, state = case["uninterrupted"], case["uninterrupted"].at("start")
    plan: Mapping[str, Mapping[str, str]] = run.fact("placement plan")[0]
    for name, records in state.parameters.items():
        fitting = [prefix for prefix in plan if under(name, (prefix,))]
        if not fitting:
            yield Violation(name, "a plan for it", "none", state.label)
            continue
        wanted = dict(plan[max(fitting, key=len)])
        odd = [rank for rank, record in enumerate(records) if layout(record) != wanted]
        if odd:
            seen = layout(records[odd[0]])
            yield Violation(name, _text(wanted), _text(seen), state.label, ranks=tuple(odd))
    unused = [prefix for prefix in plan if not any(under(n, (prefix,)) for n in state.parameters)]
    for prefix in unused:
        yield Violation(prefix, "the prefix of a parameter's name", "of none", "placement_plan()")
    yield Measurement(f"parameters off the plan, of {len(state.parameters)}", 0.0, 0.0)


def layout(record: TensorRecord) -> dict[str, str]:
    """The placement of a tensor by the names of its mesh's dimensions; empty for a plain one."""
    if record.mesh is None:
        return {}
    return dict(zip(record.mesh.names, map(str, record.placements), strict=True))


def _text(placed: Mapping[str, str]) -> str:
    return ", ".join(f"{dim}: {place}" for dim, place in placed.items()) or "plain"
