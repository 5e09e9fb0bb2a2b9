"""DCP-27 on hand-made evidence: which of two saves that overlap is there, and who was told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.rules.case import NotCovered
from tests.rules.builders import Lab, subjects

MADE, REFUSED = ["", ""], ["RuntimeError: busy"] * 2


def state(lab: Lab, number: int, step: int | None = None) -> list[Snapshot]:
    """Weights that are `number`'s, and a counter that is another's with `step`."""
    weights = {"w": lab.sharded([float(number)] * 3)}
    return lab.snapshots("state", parameters=weights, step=step or number)


def overlap(
    lab: Lab,
    first: Sequence[str],
    second: Sequence[str],
    loaded: list[Snapshot],
    held: bool = True,
) -> list[str]:
    facts = {"first save": first, "second save": second, "writers held": [held] * 2}
    moments = {f"generation {number}": state(lab, number) for number in (1, 2)}
    twice = lab.run("begun twice", moments, facts=facts)
    refused = MADE if loaded else REFUSED
    again = lab.run(
        "begun twice again", {"after load": loaded} if loaded else {}, facts={"refused": refused}
    )
    plain = lab.run("begun", {"before save": state(lab, 1)})
    plain_again = lab.run("begun again", {"after load": state(lab, 1)})
    return subjects("DCP-27", lab.case(plain, plain_again, twice, again))


def test_the_second_is_there_where_it_was_made(lab: Lab) -> None:
    assert overlap(lab, MADE, MADE, state(lab, 2)) == []
    assert overlap(lab, MADE, MADE, state(lab, 1)) == ["checkpoint"]
    assert overlap(lab, MADE, MADE, []) == ["checkpoint"]


def test_the_first_may_be_there_where_the_second_was_refused(lab: Lab) -> None:
    assert overlap(lab, MADE, REFUSED, state(lab, 1)) == []
    assert overlap(lab, MADE, REFUSED, []) == ["checkpoint"]
    assert overlap(lab, REFUSED, REFUSED, []) == []


def test_a_mixture_is_none(lab: Lab) -> None:
    for outcome in (MADE, REFUSED):
        assert overlap(lab, MADE, outcome, state(lab, 2, step=1)) == ["checkpoint"]


def test_ranks_that_are_told_otherwise(lab: Lab) -> None:
    told = ["", "RuntimeError: busy"]
    assert overlap(lab, MADE, told, state(lab, 1)) == ["the second save"]


def test_saves_that_did_not_overlap(lab: Lab) -> None:
    with pytest.raises(NotCovered):
        overlap(lab, MADE, MADE, state(lab, 2), held=False)
