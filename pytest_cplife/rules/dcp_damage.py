"""DCP: damaged copies of a sharded checkpoint are refused, on every rank and without a trace."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.run import RunEvidence, Unanswered
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_NEEDS = ("save_sharded", "load_sharded")
_BROKEN = ("a missing rank file", "a truncated rank file")
_REFUSALS = (
    *_BROKEN,
    "a flipped bit",
    "a hole in the metadata",
    "a missing tensor",
    "an unknown tensor",
    "a tensor of another dtype",
)
"""Damages of which each must leave no trace where it is refused."""


def _refused(case: Case, damage: str) -> Iterator[Finding]:
    run = case["damaged"]
    accepted = tuple(rank for rank, outcome in enumerate(run.fact(damage)) if not outcome)
    if accepted:
        touched = run.ranks[0].facts.get(f"damaged {damage}", "a data file")
        yield Violation(touched, "an exception", "loaded without a word", damage, ranks=accepted)


def _was_refused(run: RunEvidence, damage: str) -> bool:
    """True where the damage was there to be done and every rank refused it."""
    try:
        return all(run.fact(damage))
    except Unanswered as missing:
        if missing.not_offered:
            return False
        raise


@rule(
    "DCP-09",
    "a broken sharded checkpoint is refused",
    statement="A checkpoint with a missing or a truncated rank file ends load_sharded() in an"
    " exception on every rank.",
    why="A rank that goes on alone hangs the job, or trains what it had.",
    cause="Files listed instead of those that the metadata names, or an error that one rank keeps"
    " to itself.",
    runs=("damaged",),
    needs=_NEEDS,
)
def broken_refused(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-09", "damaged")
    for damage in _BROKEN:
        yield from _refused(case, damage)


@rule(
    "DCP-26",
    "a missing or cut file is named",
    statement="The exception with which a checkpoint is refused of which a rank file is missing, or"
    " half of one, has the file's name in it, on one rank at least.",
    why="Of thousands of files the one that a copy has left out, or not finished, can be fetched"
    " again.",
    cause="An error of one's own in place of the one that named the file; of a file that was cut"
    " torch itself tells no name.",
    level="should",
    runs=("damaged",),
    needs=_NEEDS,
    presumes=("DCP-09",),
)
def broken_file_named(case: Case) -> Iterator[Finding]:
    run = case["damaged"]
    for damage in _BROKEN:
        outcomes = run.fact(damage)
        name = str(run.ranks[0].facts[f"damaged {damage}"])
        if not any(name in outcome for outcome in outcomes):
            said = outcomes[0].partition("\n")[0]
            wanted = f"an error that names {name}"
            yield Violation(name, wanted, said, damage, detail=outcomes[0])


@rule(
    "DCP-10",
    "a flipped bit is found",
    statement="A checkpoint in which one bit of a data file was flipped ends load_sharded() in an"
    " exception on every rank.",
    why="Disks and networks flip bits; a weight of 1e30 is noticed, one of 0.3 is not.",
    cause="No checksums: torch.distributed.checkpoint has none.",
    level="should",
    runs=("damaged",),
    needs=_NEEDS,
)
def flipped_bit(case: Case) -> Iterator[Finding]:
    yield from _refused(case, "a flipped bit")


@rule(
    "DCP-11",
    "a refused sharded load changes nothing",
    statement="After a sharded load that was refused, weights, buffers and optimizer state are what"
    " they were before.",
    why="A caller that catches the error and tries an older checkpoint starts from a mixture.",
    cause="Reading into the live tensors before all of the checkpoint is known to be whole.",
    level="should",
    runs=("damaged",),
    needs=_NEEDS,
)
def refusal_is_clean(case: Case) -> Iterator[Finding]:
    run = case["damaged"]
    for damage in _REFUSALS:
        if not _was_refused(run, damage):
            continue
        before, after = run.at(f"{damage}: before"), run.at(f"{damage}: after")
        parts = ("weights", "buffers", "optimizer state")
        yield from compare_parts(case, run, before, after, *parts, moment=f"after {damage}")


@rule(
    "DCP-13",
    "a hole in the metadata is refused",
    statement="Metadata in which a piece of a tensor is not listed ends load_sharded() in an"
    " exception on every rank.",
    why="What no piece covers keeps its initial values, and no loss shows that at once.",
    cause="Pieces read as they are listed, as torch.distributed.checkpoint does it, without asking"
    " whether they make up the tensor.",
    level="should",
    runs=("damaged",),
    needs=_NEEDS,
)
def hole_refused(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-13", "damaged")
    yield from _refused(case, "a hole in the metadata")


@rule(
    "DCP-14",
    "a missing tensor is refused",
    statement="A sharded checkpoint without one of the tensors ends load_sharded() in an exception"
    " on every rank.",
    why="A weight that is not found is a weight that starts anew in the middle of a training.",
    cause="A planner that allows partial loads, or a template made of what the checkpoint has.",
    runs=("damaged",),
    needs=_NEEDS,
)
def missing_tensor(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-14", "damaged")
    yield from _refused(case, "a missing tensor")


@rule(
    "DCP-15",
    "an unknown tensor is refused",
    statement="A sharded checkpoint with a tensor that the trainer does not know ends"
    " load_sharded() in an exception on every rank.",
    why="A tensor too many is another architecture, or state that this version drops.",
    cause="Only the keys of the template are asked for, as torch.distributed.checkpoint does it.",
    level="should",
    runs=("damaged",),
    needs=_NEEDS,
)
def unknown_tensor(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-15", "damaged")
    yield from _refused(case, "an unknown tensor")


@rule(
    "DCP-16",
    "another dtype is not narrowed in silence",
    statement="A sharded checkpoint in which a tensor has a wider dtype than the live one ends"
    " load_sharded() in an exception on every rank, or a rank says so in a warning.",
    why="Bits that a cast drops are gone at the next save.",
    cause="A copy into the template's tensor, which casts to its dtype.",
    level="should",
    runs=("damaged",),
    needs=_NEEDS,
)
def wider_dtype(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-16", "damaged")
    yield from _refused_or_told(case, "a tensor of another dtype", ("dtype", "float64"))


@rule(
    "DCP-17",
    "a later version is refused or warned of",
    statement="A sharded checkpoint whose metadata is of version 99.0.0 ends load_sharded() in an"
    " exception, or a rank says so in a warning.",
    why="A format of later may mean something else by the same names.",
    cause="A version that is written and never read, as in torch.distributed.checkpoint.",
    level="should",
    runs=("damaged",),
    needs=_NEEDS,
)
def later_version(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-17", "damaged")
    yield from _refused_or_told(case, "a later version", ("version", "99.0.0"))


def _refused_or_told(case: Case, damage: str, words: tuple[str, ...]) -> Iterator[Finding]:
    case["damaged"].fact(damage)
    told = [text for texts in case["damaged"].fact(f"{damage}: told") for text in texts]
    if not any(word in text for text in told for word in words):
        yield from _refused(case, damage)
