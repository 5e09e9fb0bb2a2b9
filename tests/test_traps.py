"""Traps of torch and public reports: planted, or said why not."""

from __future__ import annotations

import pytest
from pytest_cplife.selftest.catalogue import FAULTS, UNSEEN
from pytest_cplife.selftest.faults.traps import LESSONS, NOT_PLANTED, REPORTS, TRAPS
from pytest_cplife.selftest.listing import listing

from pytest_cplife.rules.registry import get_rule

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


@pytest.mark.parametrize("report", REPORTS)
def test_a_public_report_is_planted_or_excused(report: str) -> None:
    planted = {name for fault in FAULTS for name in fault.public}
    assert (report in planted) != (report in NOT_PLANTED)


def test_only_reports_that_there_are_are_cited() -> None:
    cited = {name for fault in (*FAULTS, *UNSEEN) for name in fault.public}
    assert cited | NOT_PLANTED.keys() <= set(REPORTS)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_heeded_by_rules(lesson: str) -> None:
    assert [get_rule(id).id for id in LESSONS[lesson]] == [*LESSONS[lesson]]


def test_the_page_says_why_a_report_is_not_planted() -> None:
    assert all(f"- {reason}" in listing() for reason in NOT_PLANTED.values())
