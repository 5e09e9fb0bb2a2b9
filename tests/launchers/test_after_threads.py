"""Ranks that are forked from a process which has had ranks as threads: nothing of those is theirs.

The flight recorder is one per process, and a fork inherits what the parent's has seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from pytest_cplife.launchers import Launcher, make_launcher, torch_private
from pytest_cplife.launchers.base import Rank, WorldFailure
from pytest_cplife.launchers.threads import private
from tests.launchers import bodies, faulty


def many(rank: Rank) -> None:
    """More collectives than any of the tests below, on a group of the same name as theirs."""
    for _ in range(20):
        dist.all_reduce(torch.ones(4))


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    made = make_launcher("threads", timeout=60)
    made.world(3).run(many)
    # And one that is not over when the ranks are forked: the other member has yet to come.
    members = private.connect_gloo(2)
    works = [members[0].allreduce([torch.ones(4)])]
    yield
    works.append(members[1].allreduce([torch.ones(4)]))
    for work in works:
        work.wait()
    made.close()


def test_an_operation_of_the_threads_that_never_ended_is_no_rank_s_fault(
    launcher: Launcher,
) -> None:
    records = torch_private.flight_records().values()
    assert not all(entry["retired"] for record in records for entry in record), (
        "or it shows nothing"
    )
    world = launcher.world(3)
    for _ in range(2):
        assert world.run(bodies.total, 1.0) == [6.0] * 3
        assert world.notes == ()


def test_collectives_that_differ_are_told_whatever_the_threads_have_counted(
    launcher: Launcher,
) -> None:
    with pytest.raises(WorldFailure) as caught:
        launcher.world(3, "mismatch").run(faulty.same_bytes_other_dtype)
    assert caught.value.primary.type_name == "Mismatch"
    assert "rank 1 entered gloo:broadcast #1 int[4]" in caught.value.primary.message


def test_a_deadlock_is_proved_as_ever(launcher: Launcher) -> None:
    with pytest.raises(WorldFailure) as caught:
        launcher.world(3, "deadlock").run(faulty.returns_early)
    first = caught.value.primary
    assert (first.rank, first.type_name) == (1, "Deadlock")
    assert "ranks 0, 2 wait in gloo:all_reduce #1 float[4] on group '0'" in first.message


def test_what_a_rank_leaves_outstanding_is_still_its_own(launcher: Launcher) -> None:
    with pytest.raises(WorldFailure) as caught:
        launcher.world(3, "outstanding").run(faulty.outstanding)
    assert caught.value.primary.type_name == "OutstandingCollective"
    assert "gloo:all_reduce #1 float[4] on group '0'" in caught.value.primary.message
