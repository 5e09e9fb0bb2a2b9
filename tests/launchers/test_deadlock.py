"""What proves that a world can never go on, and what only looks like it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_cplife.launchers.deadlock import proved
from pytest_cplife.launchers.recorder import Op
from pytest_cplife.launchers.samples import Sample, Standing

WORLD = {"0": [0, 1]}


def look(
    standing: Standing = "rendezvous",
    *,
    function: str = "_new_process_group_helper",
    wakes: Mapping[str, int] | None = None,
    groups: Mapping[str, list[int]] | None = None,
    ops: tuple[Op, ...] = (),
) -> Sample:
    return Sample(
        standing=standing,
        function=function,
        place="",
        stack="",
        fingerprint=(),
        wakes={} if wakes is None else wakes,
        ops=ops,
        groups=WORLD if groups is None else groups,
    )


def later(sample: Sample, by: int) -> Sample:
    return replace(sample, wakes={thread: count + by for thread, count in sample.wakes.items()})


def test_a_rank_that_waits_for_one_that_has_returned_waits_for_ever() -> None:
    seen = {0: look(), 1: look("parked")}
    assert proved(seen, seen, frozenset({1}))


def test_a_rank_that_is_late_to_a_group_which_others_have_made() -> None:
    """Only its own thread has still to run; on a busy machine that can take its time."""
    others = look("parked", groups={**WORLD, "1": [0, 1]})
    seen = {0: look(), 1: others}
    assert not proved(seen, seen, frozenset({1}))
    receiving = look(function="recv", groups={**WORLD, "1": [0, 1]})
    assert not proved({0: look(), 1: receiving}, {0: look(), 1: receiving}, frozenset())


def test_a_group_that_the_rank_is_no_member_of_makes_it_not_late() -> None:
    seen = {0: look(), 1: look("parked", groups={**WORLD, "1": [1, 2]})}
    assert proved(seen, seen, frozenset({1}))


def test_a_world_whose_connections_nobody_has_looked_at_proves_nothing() -> None:
    op = Op("0", 1, "gloo:all_reduce", "float[4]", (("Float", 4),), pending=True)
    waiting = look("collective", function="all_reduce", wakes={"7": 100}, ops=(op,))
    returned = look("parked", wakes={"8": 100})
    first = {0: waiting, 1: returned}
    for mine, theirs, sound in ((2, 2, True), (1, 2, False), (2, 0, False)):
        second = {0: later(waiting, mine), 1: later(returned, theirs)}
        assert proved(first, second, frozenset({1})) is sound
