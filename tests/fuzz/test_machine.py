"""The state machine, used as a user uses it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pytest_cplife.fuzz.lifecycle import Lifecycle
from pytest_cplife.fuzz.machine import lifecycle_machine
from pytest_cplife.fuzz.profiles import Profile
from tests.fuzz.conftest import StageFactory

FEW = settings(
    Profile("few", examples=1, shrinks=1, derandomize=True).settings(2),
    stateful_step_count=4,
)


def test_machine_passes_a_healthy_trainer(stage: StageFactory) -> None:
    driver = Lifecycle(stage("pytest_cplife.selftest.trainers.fsdp2:Adapter", ["fsdp=1"]))
    run_state_machine_as_test(lifecycle_machine(driver), settings=FEW)


def test_machine_fails_a_trainer_that_saving_changes(stage: StageFactory) -> None:
    driver = Lifecycle(stage("pytest_cplife.selftest.trainers.fsdp2:Naive", ["fsdp=1"]))
    with pytest.raises(AssertionError, match=r"save: optimizer state, gain\[step\]"):
        run_state_machine_as_test(lifecycle_machine(driver), settings=FEW)
