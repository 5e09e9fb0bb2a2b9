"""Traps of torch and public reports: planted, or said why not."""

from __future__ import annotations

import pytest
from pytest_cplife.selftest.catalogue import FAULTS, UNSEEN
from pytest_cplife.selftest.faults.traps import NOT_PLANTED, TRAPS

NAMES = {fault.name for fault in FAULTS}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_planted_or_excused(trap: str) -> None:
    answer = TRAPS[trap]
    if isinstance(answer, str):
        assert answer[0].isupper() and answer.endswith(".")
    else:
        assert answer
        assert set(answer) <= NAMES


def test_what_is_planted_is_not_excused() -> None:
    planted = {report for fault in (*FAULTS, *UNSEEN) for report in fault.public}
    assert not planted & NOT_PLANTED.keys()
    assert all(reason[0].isupper() and reason.endswith(".") for reason in NOT_PLANTED.values())
