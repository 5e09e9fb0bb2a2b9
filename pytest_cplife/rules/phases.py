"""Which rule answers for which part of which run: a part that fails is one rule's failure.

Every other rule that needs what came after is blocked by it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.run import Unanswered
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Measurement, Violation

OWNERS: dict[tuple[str, str], str] = {
    ("uninterrupted", "start"): "PLACE-01",
    ("uninterrupted", "train"): "GRAD-01",
    ("uninterrupted", "train on"): "GRAD-01",
    ("uninterrupted", "close"): "GRAD-01",
    ("saving", "start"): "SAVE-01",
    ("saving", "train"): "SAVE-01",
    ("saving", "save"): "SAVE-01",
    ("saving", "train on"): "SAVE-01",
    ("saving", "close"): "SAVE-01",
    ("early", "start"): "SAVE-09",
    ("early", "save"): "SAVE-09",
    ("early", "train"): "SAVE-09",
    ("early", "close"): "SAVE-09",
    ("files", "read saved"): "SAVE-03",
    ("files", "read saved again"): "SAVE-03",
    ("files", "load serial"): "SERIAL-01",
    ("serial", "build"): "SERIAL-02",
    ("serial", "start"): "SERIAL-02",
    ("serial", "train"): "SERIAL-02",
    ("serial", "close"): "SERIAL-02",
    ("resumed", "start"): "LOAD-01",
    ("resumed", "load"): "LOAD-01",
    ("resumed", "train on"): "GO-01",
    ("resumed", "save again"): "GO-01",
    ("resumed", "close"): "GO-01",
    ("crossed", "start"): "LOAD-09",
    ("crossed", "load"): "LOAD-09",
    ("crossed", "close"): "LOAD-09",
}


def owner(run: str, phase: str) -> str:
    """The rule that fails when `phase` of `run` does.

    A failure outside any phase is the suite's own affair or the adapter's constructor's; the
    rule of the run's first phase answers for it.
    """
    if (run, phase) in OWNERS:
        return OWNERS[run, phase]
    return next((rule for (name, _), rule in OWNERS.items() if name == run), "ADAPTER-01")


def completes(case: Case, rule: str, *runs: str) -> Iterator[Finding]:
    """Find the phases that belong to `rule` and did not complete.

    Raises:
        Unanswered: a part that belongs to another rule failed before.
    """
    for run in runs:
        evidence = case[run]
        failure = evidence.failure
        mine = [phase for (name, phase), id in OWNERS.items() if name == run and id == rule]
        if failure is not None:
            if owner(run, failure.phase) != rule:
                raise Unanswered(run, mine[0])
            yield Violation(
                f"{failure.phase or 'before the first phase'} ({run})",
                "completes on every rank",
                failure.headline,
                moment=f"{run}: {failure.phase}",
                ranks=failure.ranks,
                detail=failure.detail,
            )
        elif evidence.held_back:
            raise Unanswered(run, mine[0])
        else:
            done = sum(evidence.completed(phase) for phase in mine)
            yield Measurement(f"phases of {run} that completed", float(len(mine) - done), 0.0)
