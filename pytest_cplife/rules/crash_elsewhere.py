"""CRASH: saves that are interrupted on one mesh and found on another; one path for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import NotCovered
from pytest_cplife.rules.crash_killed import UNFOLLOWED
from pytest_cplife.rules.generations import Generations, differences
from pytest_cplife.rules.interruptions import SAVED_PARTS, Interrupted, interrupted, told
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.parts import compare_parts


@interrupted(
    35,
    "an interrupted {word}save is restarted on another mesh",
    level="should",
    statement="What a job on one mesh leaves that is killed at an instant of a {save} over an older"
    " checkpoint loads on another as the older or the newer one, whole; what it leaves at a new"
    " path may be refused there, on every rank.",
    why="Jobs are killed because nodes are lost, and restarted with what nodes are left.",
    cause="Marks of each rank, or parts that a recovery counts by the number of today's ranks.",
    runs=("overwriting", "moved over"),
    crosses=True,
    # What no mesh finds at that instant.
    presumes=(9,),
)
def restarts_elsewhere(ask: Interrupted) -> Iterator[Finding]:
    ask.needs_partner()
    yield from ask.completes("moved over")
    saving, loading = ask.run("overwriting", of_partner=True), ask.run("moved over")
    last, *instants = told(loading, "states")
    if not instants:
        raise NotCovered(UNFOLLOWED)
    # What an undisturbed load does not bring back, or not to this mesh, other rules tell of.
    lossy = frozenset(differences(ask.case, loading, saving.at(last.name), loading.at(last.tree)))
    for state in instants:
        names = ("generation 1",) if state.fresh else ("generation 1", "generation 2")
        saved = tuple(saving.at(name) for name in names)
        generations = Generations(ask.case, saved, loading, lossy)
        yield from generations.judge(state, refusal_is_right=state.fresh)


@interrupted(
    36,
    "a {word}save replaces one of another mesh",
    level="must",
    statement="A checkpoint that one mesh has saved over an older one loads on another as it was"
    " saved; and what that one saves over it is what {load} gives the first on every rank, unless"
    " all ranks refuse the {save}.",
    why="A job that gets its nodes back starts from where it lost them, on some of its ranks.",
    cause="Files of each rank, of which a smaller world replaces only its own, and a larger one"
    " reads all again.",
    runs=("overwriting", "moved over", "returned over"),
    crosses=True,
)
def replaces_elsewhere(ask: Interrupted) -> Iterator[Finding]:
    ask.needs_partner()
    ask.needs_replacement("moved over", of_partner=True)
    yield from ask.completes("moved over", "returned over")
    saving, moved = ask.run("overwriting", of_partner=True), ask.run("moved over")
    last = told(moved, "states")[0]
    saved, loaded = saving.at(last.name), moved.at(last.tree)
    label = f"moved over from {ask.case.partner}: {last.name}"
    yield from compare_parts(ask.case, moved, saved, loaded, *SAVED_PARTS, moment=label)
    there, back = ask.run("moved over", of_partner=True), ask.run("returned over")
    saved, loaded = there.at("moved on"), back.at("returned")
    label = f"returned over from {ask.case.partner}: returned"
    yield from compare_parts(ask.case, back, saved, loaded, *SAVED_PARTS, moment=label)
