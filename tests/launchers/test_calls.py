"""When a collective that nobody has seen end is a fault, and when the recorder is only late."""

from __future__ import annotations

from pytest_cplife.launchers.calls import _all_entered
from pytest_cplife.launchers.recorder import Op


def op(number: int, *, group: str = "0", name: str = "all_reduce", pending: bool = False) -> Op:
    return Op(group, number, name, "float[4]", (("Float", 4),), pending)


def test_what_all_have_entered_may_be_late() -> None:
    both = (op(1), op(2, pending=True))
    assert _all_entered({0: both, 1: (op(1), op(2))})
    assert _all_entered({0: both, 1: both})


def test_what_one_rank_entered_alone_is_none_to_wait_for() -> None:
    alone = (op(1), op(2, pending=True))
    assert not _all_entered({0: alone, 1: (op(1),)})
    assert not _all_entered({0: alone, 1: ()})
    assert not _all_entered({0: alone, 1: (op(1), op(2, name="broadcast"))})


def test_only_the_group_s_own_ranks_are_asked() -> None:
    part = (op(1, group="3", pending=True),)
    assert _all_entered({0: part, 1: part, 2: (op(1),)})
