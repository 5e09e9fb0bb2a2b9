"""OPT: step counts of a run that has come far."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule


@rule(
    "OPT-12",
    "late step counts come back",
    statement="Step counts in the optimizer's state that have come to a million are saved and"
    " loaded as what they are, of the type and dtype that they had.",
    why="A count that is rounded is right for as long as anybody tests: bfloat16 counts to 256.",
    cause="A cast of the whole optimizer state for a broadcast or for the file, step counts"
    " included.",
    runs=("late",),
    presumes=("OPT-01", "OPT-02"),
)
def late_counts(case: Case) -> Iterator[Finding]:
    yield from completes(case, "OPT-12", "late")
    run = case["late"]
    saved, loaded = (run.at(moment).optimizer_state for moment in ("late", "late: after load"))
    # What a load brings beside is OPT-01's to tell; what it loses is found here as well.
    found = {name: records for name, records in loaded.items() if name in saved}
    moment = "late: after load"
    yield from compare(case, run.assembler, "optimizer state", saved, found, moment=moment)
