"""LOAD: files that do not fit the model, or each other, are refused, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import replicas_agree
from pytest_cplife.rules.edited import refused
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_UNFIT = (
    "a missing weight",
    "a weight of another size",
    "an unknown weight",
    "optimizer state of another size",
    "no state of one parameter",
)
_PORTABLE = ("weights", "buffers", "optimizer state", "averages", "counters")


@rule(
    "LOAD-12",
    "a file of another architecture is refused",
    statement="A file in which a weight is missing, or has another size, ends load() in an"
    " exception on every rank.",
    why="A weight that is silently left at its initial value is never found again.",
    cause="strict=False without a check of what was missing, a copy of the overlapping rows, an"
    " exception that is caught and logged, or set_model_state_dict(full_state_dict=True) of torch,"
    " which fills what the file lacks from the live model even with strict=True.",
    runs=("refusing",),
)
def other_architecture(case: Case) -> Iterator[Finding]:
    yield from completes(case, "LOAD-12", "refusing")
    for edit in ("a missing weight", "a weight of another size"):
        yield from refused(case, "refusing", edit)


@rule(
    "LOAD-13",
    "an unknown weight is refused",
    statement="A file with a weight that the model does not have ends load() in an exception on"
    " every rank.",
    why="What the model does not know was trained, and is thrown away without a word.",
    cause="strict=False, or a loader that only asks for the keys it knows.",
    level="should",
    runs=("refusing",),
)
def unknown_weight(case: Case) -> Iterator[Finding]:
    yield from refused(case, "refusing", "an unknown weight")


@rule(
    "LOAD-14",
    "a refused load changes nothing",
    statement="After a load that was refused, every weight, buffer, optimizer entry, average and"
    " counter is what it was before.",
    why="A caller that catches the error goes on with half a checkpoint.",
    cause="Loading tensor by tensor while checking; torch's own load_state_dict does so.",
    level="should",
    runs=("refusing",),
)
def refusal_is_clean(case: Case) -> Iterator[Finding]:
    run = case["refusing"]
    run.fact(_UNFIT[0])
    for edit in _UNFIT:
        # What could not be edited, or ended the run, was refused by nobody.
        if not all(journal.facts.get(edit) for journal in run.ranks):
            continue
        before, after = run.at(f"{edit}: before"), run.at(f"{edit}: after")
        moment = f"after a file with {edit}"
        yield from compare_parts(case, run, before, after, *_PORTABLE, moment=moment)


@rule(
    "LOAD-15",
    "ranks that read different files are found out",
    statement="Where rank 0 is given one file and the other ranks one of a later step, load() ends"
    " in an exception on every rank, or all ranks have the state of one of the two.",
    why="A cache that is stale on one node, or a pointer that has moved on one, trains half of each"
    " of two models.",
    cause="Every rank reads for itself, and nobody compares what was read.",
    level="should",
    runs=("saving", "refusing"),
    events=("several ranks",),
)
def different_files(case: Case) -> Iterator[Finding]:
    run, edit = case["refusing"], "another step on other ranks"
    outcomes = run.fact(edit)
    if any(outcomes):
        yield from refused(case, "refusing", edit)
        return
    saved, loaded = case["saving"].at("before save"), run.at(f"{edit}: after")
    moment = f"after {edit}"
    apart = list(replicas_agree(loaded.parameters, moment=moment))
    yield from apart
    mixed = {violation.subject for violation in apart}
    origins: dict[str, str] = {}
    for name in run.ranks[0].facts[f"names of {edit}"]:
        if name in saved.parameters and name in loaded.parameters and name not in mixed:
            a = run.assembler.full(saved.parameters[name])
            b = run.assembler.full(loaded.parameters[name])
            whose = {"one": torch.equal(a, b), "the other": torch.equal(a + 1.0, b)}
            origins[name] = next((file for file, same in whose.items() if same), "a mixture")
    first = next(iter(origins.values()), "one")
    for name, origin in origins.items():
        if origin == "a mixture" or origin != first:
            yield Violation(name, "the value in one of the files", origin, moment)
