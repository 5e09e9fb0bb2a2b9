"""A failed rank can be looked at: in its traceback, in its frames, at a prompt."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch.distributed as dist

from pytest_cplife.launchers.base import Rank, World, WorldFailure

SUITE = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.cplife(mesh="cp=2", timeout=2)
    def test_it():
        here = f"the rank is {dist.get_rank()}"
        dist.barrier()
        if dist.get_rank() == 1:
            BREAK
        dist.barrier()
"""


def frames(error: BaseException) -> list[str]:
    names, trace = [], error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return names


def test_the_traceback_leads_into_the_ranks_own_frames(two: World) -> None:
    def inner(secret: int) -> None:
        assert secret == 0

    def body(rank: Rank) -> None:
        inner(rank.rank)
        dist.barrier()

    with pytest.raises(WorldFailure) as caught:
        two.run(body)
    assert frames(caught.value)[-2:] == ["body", "inner"]
    assert caught.traceback[-1].locals["secret"] == 1
    # The assertion was rewritten by pytest, as in any test.
    assert "assert 1 == 0" in caught.value.primary.message
    cause = caught.value.__cause__
    assert isinstance(cause, AssertionError) and frames(cause)[-1] == "inner"


def test_a_deadlock_can_be_looked_at_where_the_rank_waits(two: World) -> None:
    def body(rank: Rank) -> None:
        marker = rank.rank * 10 + 7
        if marker == 7:
            dist.barrier()

    with pytest.raises(WorldFailure) as caught:
        two.run(body)
    places = {entry.name: entry for entry in caught.traceback}
    assert places["body"].locals["marker"] == 7


@pytest.mark.parametrize(
    ("statement", "options", "verdict"),
    [("raise LookupError('look here')", ["--pdb"], "failed"), ("breakpoint()", [], "passed")],
    ids=["--pdb", "breakpoint"],
)
def test_the_debugger_stops_in_the_rank(
    pytester: pytest.Pytester, statement: str, options: list[str], verdict: str
) -> None:
    path = pytester.makepyfile(SUITE.replace("BREAK", statement))
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(path)]
    command += ["--cplife-launcher=threads", "-p", "no:hypothesispytest"]
    # Looking takes longer than the deadline of the call: whoever looks may take their time.
    commands = "import time; time.sleep(3)\np 'so ' + here\nc\nq\n"
    done = subprocess.run(command, input=commands, capture_output=True, text=True, timeout=120)
    assert "so the rank is 1" in done.stdout, done.stdout
    assert f"1 {verdict}" in done.stdout
    assert "the deadline was" not in done.stdout
