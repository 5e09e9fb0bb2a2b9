"""LOAD: transfer loads, which take over weights and nothing else, and not from anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.edited import refused
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_RUNS = ("saving", "transferred")
_NEEDS = ("load_pretrained",)


@rule(
    "LOAD-17",
    "a transfer takes over the weights that there are",
    statement="load_pretrained() of a file, whole or with a module less or more, gives every weight"
    " that file and model share the file's value, bit for bit, and leaves all other weights, the"
    " optimizer's state and the counters as they were.",
    why="Fine-tuning starts from what was trained; what was skipped without a word was not.",
    cause="Keys that do not match, a load of DTensors by halves, or a resume in disguise.",
    runs=_RUNS,
    needs=_NEEDS,
)
def transfers(case: Case) -> Iterator[Finding]:
    yield from completes(case, "LOAD-17", "transferred")
    run = case["transferred"]
    for edit in ("its own weights", "a module less", "a module more"):
        if any(edit in journal.absent for journal in run.ranks):
            continue
        no = [(rank, text) for rank, text in enumerate(run.fact(edit)) if text]
        if no:
            ranks = tuple(rank for rank, _ in no)
            yield Violation(edit, "taken over", no[0][1], f"a file with {edit}", ranks=ranks)
            continue
        gone = run.ranks[0].facts["left out"] if edit == "a module less" else ()
        yield from _taken_over(case, edit, gone)


def _taken_over(case: Case, edit: str, gone: Collection[str]) -> Iterator[Finding]:
    run = case["transferred"]
    saved = case["saving"].at("before save")
    before, after = run.at(f"{edit}: before"), run.at(f"{edit}: after")
    moment = f"after a file with {edit}"
    wanted = {
        name: before.parameters[name] if name in gone else records
        for name, records in saved.parameters.items()
    }
    yield from compare(case, run.assembler, "weights", wanted, after.parameters, moment=moment)
    kept = ("optimizer state", "counters")
    yield from compare_parts(case, run, before, after, *kept, moment=moment)


@rule(
    "LOAD-18",
    "a transfer from another architecture is refused",
    statement="load_pretrained() of a file in which a weight has another size, or no name is the"
    " model's, ends in an exception on every rank; one whose names all have a prefix is refused, or"
    " its weights are taken over.",
    why="strict=False on the wrong file is a training from scratch that nobody has asked for.",
    cause="No check of what was missing after a load that is not strict.",
    runs=_RUNS,
    needs=_NEEDS,
)
def architecture(case: Case) -> Iterator[Finding]:
    for edit in ("a weight of another width", "foreign names"):
        yield from refused(case, "transferred", edit)
    edit = "another prefix"
    outcomes = case["transferred"].fact(edit)
    if any(outcomes):
        yield from refused(case, "transferred", edit)
    else:
        yield from _taken_over(case, edit, ())
