"""FUZZ: what holds for every mesh, placement and plan, not only for those that were thought of.

How it is searched for is `pytest_cplife.fuzz`, which lies above the rules: they are given what was
found. They are about the adapter as a whole, and so are judged once and not on every mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.registry import rule


def _judge(case: Case, run: str) -> Iterator[Finding]:
    [fact] = case[run].fact("fuzzed")
    if not fact.examples:
        yield Violation("search", "examples", "none was tried, or none said anything", run)
    for number, violation in enumerate(fact.violations):
        # The example is the same for all of them, and told once; of a long text the end is shown.
        trace = f"{violation.detail.rstrip()}\n\n" if violation.detail else ""
        shown = f"{trace}smallest example:\n{fact.shown}" if number == 0 else ""
        yield replace(violation, detail=shown)
    if not fact.violations:
        yield Measurement(f"{fact.examples} examples in {fact.seconds:.1f} s", 0.0, 0.0)


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
    yield from _judge(case, "fuzz strides")


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
    statement="In whatever order a run is trained, saved, loaded, restarted elsewhere, evaluated"
    " with averaged weights and stopped by a full disk, after step s it is what an uninterrupted"
    " run is after step s.",
    why="Real lives have more than one save, loads that go back, and saves that fail.",
    cause="State that a save or a load leaves behind: caches of an earlier save, counters or"
    " schedules that only a fresh run restores, averages that are not swapped back, a failed save"
    " that is taken for a good one or takes an earlier one with it.",
    runs=("fuzz lifecycle",),
)
def lifecycles(case: Case) -> Iterator[Finding]:
    yield from _judge(case, "fuzz lifecycle")
