"""What `test_nodes.py` runs on two ranks of two nodes; not collected otherwise."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from pytest_cplife.launchers import Launcher, make_launcher
from pytest_cplife.launchers.torchrun.entry import open_hub
from tests.launchers import bodies


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    made = make_launcher("torchrun", timeout=60)
    yield made
    made.close()


def test_each_rank_is_alone_on_its_node(launcher: Launcher) -> None:
    world = launcher.world(2)
    assert world.run(bodies.total, 1.0) == [3.0, 3.0]
    for rank, found in enumerate(world.run(bodies.variables)):
        assert (found["RANK"], found["WORLD_SIZE"]) == (str(rank), "2")
        assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("0", "1")
        assert found["GROUP_RANK"] == str(rank)
    for name in ("SLURM_PROCID", "SLURM_NTASKS"):
        assert world.run(bodies.environment, name) == [None, None]


def test_that_fails(launcher: Launcher) -> None:
    raise AssertionError("as planned")


def test_in_which_the_other_rank_is_killed(launcher: Launcher) -> None:
    agent = open_hub().agent_of(1)
    launcher.world(2).run(bodies.total, 1.0)
    os.kill(agent, signal.SIGKILL)
    launcher.world(2).run(bodies.sleep, 50.0)


def test_in_which_it_is_killed_while_rank_0_is_busy() -> None:
    os.kill(open_hub().agent_of(1), signal.SIGKILL)
    time.sleep(50.0)


def test_in_which_it_is_killed_when_all_is_done() -> None:
    os.kill(open_hub().agent_of(1), signal.SIGKILL)


def test_in_which_rank_0_is_killed(launcher: Launcher) -> None:
    launcher.world(2).run(bodies.total, 1.0)
    os.kill(os.getpid(), signal.SIGKILL)
