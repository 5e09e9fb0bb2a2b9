"""FUZZ: what holds for every mesh, placement and plan, not only for those that were thought of.

The registry finds a group's module by the group's name, and this one has another until sessions
make the runs of `pytest_cplife.fuzz.evidence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule


def _judge(case: Case, run: str) -> Iterator[Finding]:
    # One `Fuzzed` of `pytest_cplife.fuzz.evidence`, which lies above the rules.
    [fact] = case[run].fact("fuzzed")
    if not fact.examples:
        yield Violation("search", "examples", "none was tried", run)
    for number, violation in enumerate(fact.violations):
        # The example is the same for all of them, and told once.
        detail = fact.text + (f"\n{violation.detail}" if violation.detail else "")
        yield replace(violation, detail=detail if number == 0 else "")


@rule(
    "FUZZ-01",
    "tensors survive the way to plain and back",
    statement="For trees of DTensors and plain tensors of any shape, dtype, placement and memory"
    " layout, to_plain gives the full values, bit for bit, and realign gives back the template's"
    " mesh, placements and shapes with those values.",
    why="Checkpoints and exports go through these two; a shape that does not divide is met in use.",
    cause="Padding of uneven shards, empty shards, strided shards taken for plain ones, containers"
    " that are not entered, or values that pass through another dtype.",
    runs=("fuzz round trip",),
    needs=("to_plain", "realign"),
)
def round_trip(case: Case) -> Iterator[Finding]:
    yield from _judge(case, "fuzz round trip")


@rule(
    "FUZZ-02",
    "realign keeps the stride",
    level="should",
    statement="realign gives a DTensor the stride of its template.",
    why="A transposed weight that comes back contiguous changes kernels, and with them results.",
    cause="distribute_tensor takes the stride from what it is given, not from the template.",
    runs=("fuzz strides",),
    needs=("to_plain", "realign"),
)
def strides(case: Case) -> Iterator[Finding]:
    mine = ("realign: stride", "fuzz strides")
    for finding in _judge(case, "fuzz strides"):
        # What else is wrong there is for FUZZ-01 to say.
        if not isinstance(finding, Violation) or finding.moment in mine:
            yield finding


@rule(
    "FUZZ-03",
    "any mesh loads what any mesh saved",
    statement="What was saved on one declared mesh after any number of steps loads on any other bit"
    " for bit, and the steps that follow are those of a run that was never stopped.",
    why="A job comes back on other machines than it left.",
    cause="State that depends on who saved it: shards by rank, positions instead of names, moments"
    " that only some meshes restore.",
    runs=("fuzz mesh pair",),
)
def mesh_pairs(case: Case) -> Iterator[Finding]:
    yield from _judge(case, "fuzz mesh pair")


@rule(
    "FUZZ-04",
    "every lifecycle stays on course",
    statement="Whatever order a run is trained, saved, loaded, restarted elsewhere and evaluated"
    " with averaged weights in, after step s it is what an uninterrupted run is after step s.",
    why="Real lives have more than one save, and loads that go back.",
    cause="State that a save or a load leaves behind: caches of an earlier save, counters or"
    " schedules that only a fresh run restores, averages that are not swapped back.",
    runs=("fuzz lifecycle",),
)
def lifecycles(case: Case) -> Iterator[Finding]:
    yield from _judge(case, "fuzz lifecycle")
