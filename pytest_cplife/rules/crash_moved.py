"""CRASH: a folder of checkpoints in the hands of jobs of other sizes, and of one that begins it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.generations import Generations, differences
from pytest_cplife.rules.interruptions import SAVED_PARTS, told
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_NEEDS = ("save_into", "load_newest")


@rule(
    "CRASH-32",
    "the newest is found on another mesh",
    statement="From a folder that a job on one mesh has left, killed at an instant of save_into()"
    " or not, load_newest() on another restores on every rank the newest whole checkpoint, all of"
    " one step; and that job goes on, and saves into it.",
    why="Of a job that is restarted with what nodes are left, nothing but the folder says where to"
    " begin.",
    cause="Marks or pointers of each rank, of which the ranks of another world read others; parts"
    " that are sought by the number of today's ranks.",
    runs=("advancing", "moved"),
    needs=_NEEDS,
)
def found_elsewhere(case: Case) -> Iterator[Finding]:
    _needs_partner(case)
    yield from completes(case, "CRASH-32", "moved")
    saving, loading = case["advancing of partner"], case["moved"]
    newest, *instants = told(loading, "states")
    saved, loaded = saving.at(newest.name), loading.at(newest.tree)
    label = f"moved from {case.partner}: {newest.name}"
    yield from compare_parts(case, loading, saved, loaded, *SAVED_PARTS, moment=label)
    # What an undisturbed load does not bring back, or not to this mesh, other rules tell of.
    lossy = frozenset(differences(case, loading, saved, loaded))
    for state in instants:
        number = int(state.name.split()[1].rstrip(","))
        either = (saving.at(f"generation {number - 1}"), saving.at(f"generation {number}"))
        yield from Generations(case, either, loading, lossy).judge(state)


@rule(
    "CRASH-33",
    "the newest is found by the mesh that comes back",
    statement="Where a job on another mesh has gone on in a folder, load_newest() on the mesh that"
    " began it restores on every rank what that job has saved last.",
    why="A job that gets its nodes back starts from where it lost them, on some of its ranks.",
    cause="A pointer of each rank, or files of each rank, of which a smaller world renews only its"
    " own.",
    runs=("advancing", "returned"),
    needs=_NEEDS,
)
def found_again(case: Case) -> Iterator[Finding]:
    _needs_partner(case)
    yield from completes(case, "CRASH-33", "returned")
    saved, run = case["moved of partner"].at("moved on"), case["returned"]
    label = f"returned from {case.partner}: returned"
    yield from compare_parts(case, run, saved, run.at("returned"), *SAVED_PARTS, moment=label)


def _needs_partner(case: Case) -> None:
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to load on")


@rule(
    "CRASH-34",
    "the first save makes its folder",
    statement="A save_into() for which there is no folder yet makes it and succeeds on every rank,"
    " unless all ranks refuse it and none is made.",
    why="The first save of a job ends it, on some machines and on others not.",
    cause="Ranks that list or write a folder before another one has made it.",
    runs=("advancing",),
    needs=_NEEDS,
)
def first_makes_folder(case: Case) -> Iterator[Finding]:
    yield from completes(case, "CRASH-34", "advancing")
    run = case["advancing"]
    outcomes = run.fact("first save")
    raising = tuple(rank for rank, outcome in enumerate(outcomes) if outcome)
    if not raising:
        return
    text = outcomes[raising[0]].rstrip(": ")
    if len(raising) == len(outcomes) and not any(run.fact("folder made")):
        raise NotCovered(f"save_into() wants a folder that is there ({text})")
    wanted = "a checkpoint in a new folder, on every rank"
    yield Violation("the first save", wanted, text, "advancing: first save into", ranks=raising)
