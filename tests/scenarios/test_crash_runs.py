"""Ranks that are meant to die, on real processes, and those that are not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pytest_cplife.selftest.trainers import fsdp2

from pytest_cplife.evidence.folders import tree_digest
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Launcher
from pytest_cplife.loading import load_adapter
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.scenarios.runner import Runner
from pytest_cplife.settings import Settings

TWO = MeshSpec.parse("fsdp=2")


class DiesInTheWrite(fsdp2.Fsdp2Run):
    """Ends by itself in its second save, before a byte is written."""

    def write(self, payload: Mapping[str, Any], path: Path) -> None:
        if path.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(payload, path)


class Dies(fsdp2.Adapter):
    run_class = DiesInTheWrite


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    made = make_launcher("processes", timeout=120.0)
    yield made
    made.close()


def runner(ref: str, folder: Path, launcher: Launcher) -> Runner:
    return Runner(Settings(ref, folder), load_adapter(ref), launcher)


def test_a_death_that_was_meant_is_no_failure(tmp_path: Path, launcher: Launcher) -> None:
    runs = runner("pytest_cplife.selftest.trainers.fsdp2:Adapter", tmp_path, launcher)
    run = runs.run("killed", TWO)
    assert run.failure is None
    assert [journal.facts.get("doomed") for journal in run.ranks] == [True, None]
    unfinished = runs.output("killed", TWO).with_name("checkpoint.unfinished")
    whole = runs.output("killed", TWO).stat().st_size
    assert 0 < unfinished.stat().st_size <= whole // 2
    again = runs.run("restarted", TWO)
    assert again.failure is None and again.completed("load")


def test_another_death_is_one(tmp_path: Path, launcher: Launcher) -> None:
    run = runner(f"{__name__}:Dies", tmp_path, launcher).run("overwriting", TWO)
    assert run.failure is not None
    assert run.failure.phase == "replace" and "SIGKILL" in run.failure.headline


def test_another_mesh_takes_up_copies_and_the_first_gets_back_what_it_made_of_them(
    tmp_path: Path, launcher: Launcher
) -> None:
    one = MeshSpec.parse("fsdp=1")
    runs = runner("pytest_cplife.selftest.trainers.sharded:Adapter", tmp_path, launcher)
    begun = runs.run("overwriting sharded", TWO)
    left = tree_digest(runs.output("overwriting sharded", TWO).parent)
    moved = runs.run("moved over sharded", one, TWO)
    assert moved.failure is None
    newest, *instants = moved.ranks[0].facts["states"]
    assert [state.name for state in instants] == [
        "generation 2, rank 0 before renaming checkpoint",
        "generation 2, rank 0 before renaming checkpoint.unfinished",
    ]
    steps = [step(begun, name) for name in ("generation 1", newest.name)]
    found = [step(moved, state.tree) for state in instants]
    assert set(found) <= set(steps) and step(moved, newest.tree) == steps[1]
    assert tree_digest(runs.output("overwriting sharded", TWO).parent) == left
    returned = runs.run("returned over sharded", TWO, one)
    assert step(returned, "returned") == step(moved, "moved on") == steps[1] + 1


def step(run: RunEvidence, moment: str) -> int:
    (steps,) = {snapshot.counters["global_step"] for snapshot in run.at(moment).ranks}
    return steps
