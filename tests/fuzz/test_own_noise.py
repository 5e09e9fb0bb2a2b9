"""Noise from generators of a trainer's own, in plans: what it excuses, and what it does not."""

from __future__ import annotations

import pytest

from pytest_cplife.fuzz.draws import Draws
from pytest_cplife.fuzz.lifecycle import Lifecycle
from pytest_cplife.fuzz.plan_suites import mesh_pair
from pytest_cplife.mesh import MeshSpec
from tests.fuzz.conftest import StageFactory

MESHES = ("fsdp=1", "fsdp=2")
ONE, TWO = (MeshSpec.parse(mesh) for mesh in MESHES)
TRAINERS = "pytest_cplife.selftest.trainers.own_noise"


@pytest.mark.parametrize("trainer", ["Adapter", "Kept", "Fresh"])
def test_other_ranks_draw_other_noise(stage: StageFactory, trainer: str) -> None:
    """However small a budget the meshes' uninterrupted runs leave by luck."""
    driver = Lifecycle(stage(f"{TRAINERS}:{trainer}", MESHES))
    for pair in ((TWO, ONE), (ONE, TWO), (TWO, TWO)):
        assert driver.carry_out(mesh_pair(*pair, 3, 2)) == (), pair


@pytest.mark.parametrize("fault", ["ReplaysOwnNoise", "ForgetsOwnNoise"])
def test_noise_that_is_no_fresh_one_is_found(stage: StageFactory, fault: str) -> None:
    driver = Lifecycle(stage(f"pytest_cplife.selftest.faults.streaming:{fault}", MESHES))
    violations = driver.carry_out(mesh_pair(TWO, TWO, 1, 1))
    assert violations and {v.moment.partition(":")[0] for v in violations} == {"train"}


def step(states: str, samples: str = "12") -> Draws:
    return Draws(frozenset(states), frozenset(samples))


MODEL = [step("a"), step("b")]


@pytest.mark.parametrize(
    ("seen", "crossed", "policy", "excused"),
    [
        (step("c"), True, "none", True),
        (step("b"), True, "none", False),
        (step("a"), True, "none", True),
        (step("c"), False, "offset", True),
        (step("bc"), False, "offset", True),
        (step("a"), False, "offset", False),
        (step("b"), False, "offset", False),
        (step("c"), False, "restore", False),
        (step("c"), False, "none", False),
        (step("c", "13"), True, "offset", False),
        (step("c", ""), True, "offset", False),
    ],
)
def test_what_is_excused(seen: Draws, crossed: bool, policy: str, excused: bool) -> None:
    model = MODEL if seen.samples else [step("a", ""), step("b", "")]
    assert seen.otherwise(model, crossed=crossed, policy=policy) is excused
