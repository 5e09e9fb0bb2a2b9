"""What torchrun or SLURM says about a process, read from variables."""

from __future__ import annotations

import pytest

from pytest_cplife.launchers import most_ranks
from pytest_cplife.launchers.torchrun.given import Given, given

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]-ib,other",
}


def test_torchruns_variables() -> None:
    assert given(TORCHRUN) == Given("torchrun", 3, 4, 1, "node1", 29400, True, "2")


def test_slurms_variables_with_a_meeting_place_that_all_of_a_step_agree_on() -> None:
    one, other = given(SLURM), given({**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert one is not None and other is not None
    assert (one.starter, one.rank, one.world_size, one.node) == ("SLURM", 5, 8, 2)
    assert one.host == other.host == "gpu07-ib"
    assert one.port == other.port and 20000 <= one.port < 40000
    assert not one.store_is_served
    another_step = given({**SLURM, "SLURM_STEP_ID": "1"})
    assert another_step is not None and another_step.port != one.port


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a1", "a1"), ("a1,b2", "a1"), ("a[3,5]", "a3"), ("a[010-012],b", "a010"), ("", "127.0.0.1")],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    found = given({**SLURM, "SLURM_STEP_NODELIST": nodes})
    assert found is not None and found.host == first


def test_a_meeting_place_that_the_user_names_wins() -> None:
    found = given({**SLURM, "MASTER_ADDR": "here", "MASTER_PORT": "1234"})
    assert found is not None and (found.host, found.port) == ("here", 1234)


def test_torchrun_inside_of_slurm_is_torchrun() -> None:
    found = given({**SLURM, **TORCHRUN})
    assert found is not None and found.starter == "torchrun"


def test_nothing_said() -> None:
    assert given({"WORLD_SIZE": "4"}) is None


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", ""), ("MASTER_PORT", "x")])
def test_half_of_it_said_names_what_is_wrong(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"the variable {name} is "):
        given({**TORCHRUN, name: value})


def test_the_launcher_has_as_many_ranks_as_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, *SLURM):
        monkeypatch.delenv(name, raising=False)
    assert most_ranks("torchrun") is None
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert most_ranks("torchrun") == (8, "SLURM has started 8")
    assert most_ranks("processes") is None
