"""The planted faults as a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.selftest.catalogue import FAULTS, UNSEEN
from pytest_cplife.selftest.faults.traps import NOT_PLANTED, REPORTS
from pytest_cplife.selftest.planting import Fault

from pytest_cplife.rules.model import GROUPS
from pytest_cplife.rules.registry import get_rule

INTRODUCTION = """\
# Planted faults

Every rule is there because something breaks it. Each fault below is a healthy trainer with one
thing wrong; `pytest --cplife-selftest` judges each on its mesh and fails unless the rule beside it
finds it and names what is wrong. `python -m pytest_cplife.selftest NAME` prints every rule that the
fault `NAME` breaks. This page is printed by `python -m pytest_cplife.selftest --list`.
"""


def listing() -> str:
    """The whole page, ending in a newline."""
    return "\n".join([INTRODUCTION, *_tally(), *_tables(), *_unseen(), *_not_planted()]) + "\n"


def _tally() -> Iterator[str]:
    rules = {fault.rule for fault in FAULTS}
    public = [fault for fault in FAULTS if fault.public]
    yield (
        f"{len(FAULTS)} faults for {len(rules)} rules, {len(public)} of them known from public"
        f" reports; {len(UNSEEN)} that no rule sees."
    )


def _tables() -> Iterator[str]:
    for group, about in GROUPS.items():
        faults = [fault for fault in FAULTS if fault.rule.startswith(f"{group}-")]
        if not faults:
            continue
        yield f"\n## {group}: {about}\n"
        yield "| rule | fault | mesh | what is wrong |"
        yield "|---|---|---|---|"
        for fault in sorted(faults, key=lambda fault: fault.rule):
            yield _row(fault, f"{fault.rule} {get_rule(fault.rule).title}")


def _unseen() -> Iterator[str]:
    if UNSEEN:
        yield "\n## Unseen\n\nWhat no rule finds yet.\n"
        yield "| fault | mesh | what is wrong |"
        yield "|---|---|---|"
        for fault in UNSEEN:
            yield _row(fault)


def _not_planted() -> Iterator[str]:
    told = len(REPORTS) - len(NOT_PLANTED)
    yield "\n## Not planted\n"
    yield f"Of {len(REPORTS)} public reports {told} are planted. What the others tell of:\n"
    for reason in NOT_PLANTED.values():
        yield f"- {reason}"


def _row(fault: Fault, *before: str) -> str:
    mesh = f"`{fault.mesh}`" if fault.mesh else "all"
    why = fault.why.replace("|", "\\|").replace("``", "`")
    return f"| {' | '.join([*before, fault.name, mesh, why])} |"
