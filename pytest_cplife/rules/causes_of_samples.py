"""How ranks come to take other samples than they should: by whose samples are in the batch."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.pattern import Pattern


def _strangers(case: Case) -> list[bool]:
    """By rank, whether it takes a sample that the serial run's first batch has not."""
    if not {"serial", "parity"} <= case.runs.keys():
        return []
    batch = set(case["serial"].fact("sample_ids first")[0])
    return [not batch.issuperset(ids) for ids in case["parity"].fact("sample_ids first")]


def _own_orders(case: Case, violations: Sequence[Violation]) -> bool:
    strangers = _strangers(case)
    return any(strangers) and not strangers[0]


def _another_order(case: Case, violations: Sequence[Violation]) -> bool:
    return any(_strangers(case))


SAMPLES = (
    Pattern(
        ("DATA-02",),
        "the first rank takes samples of the serial run's batch and others do not: each rank draws"
        " the order from a random stream of its own (seeded with its rank, or not seeded); seed the"
        " stream of the order alike on all ranks, or draw it on one and broadcast it",
        _own_orders,
    ),
    Pattern(
        ("DATA-02",),
        "ranks take samples that are not in the serial run's batch: the order is drawn from another"
        " random stream than there (never seeded, seeded with something of the mesh, or drawn from"
        " before by other ranks or more often), or is split before it is shuffled",
        _another_order,
    ),
)
"""The narrowest pattern comes first."""
