"""Every fault that fuzzing has to find is found by its rule in profile ``gate``, and made small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_cplife.selftest.bench import Bench
from pytest_cplife.selftest.catalogue import FAULTS
from pytest_cplife.selftest.planting import Fault

from pytest_cplife.fuzz import trees
from pytest_cplife.fuzz.plans import Plan
from pytest_cplife.fuzz.profiles import Profile
from pytest_cplife.fuzz.replay import read_replay
from pytest_cplife.fuzz.search import search
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Outcome
from pytest_cplife.rules.registry import get_rule
from tests.fuzz.conftest import StageFactory

FUZZED = [fault for fault in FAULTS if fault.rule.startswith("FUZZ-")]

SMALLEST = {
    # ranks, tensors and elements of all of them; what is wrong there
    "UnevenLastShard": (2, 1, 1, "to_plain: shape"),
    "EmptyShard": (2, 1, 1, "to_plain: bytes"),
    "StridedOrder": (4, 1, 4, "to_plain: bytes"),
    "OneElement": (2, 1, 1, "to_plain: shape"),
    "SameShape": (2, 2, 2, "to_plain: bytes"),
    "SwappedMesh": (4, 1, 1, "realign: local shape"),
    "SignOfZero": (2, 1, 1, "to_plain: bytes"),
    "ThroughFloat": (2, 1, 1, "to_plain: bytes"),
    "IgnoredStride": (2, 1, 2, "to_plain: bytes"),
    "IgnoredOffset": (2, 1, 1, "to_plain: bytes"),
    "SecondDimension": (2, 1, 4, "to_plain: bytes"),
    "NoDimension": (2, 1, 1, "realign: kind"),
    "TallTensor": (2, 1, 65, "to_plain: bytes"),
    "TransposedValues": (2, 1, 4, "realign: bytes"),
    "BytesAsText": (2, 0, 0, "to_plain: value"),
    "TransposedTemplate": (2, 1, 4, "realign: stride"),
    # ranks and steps of the plan; what is wrong there
    "PairLosesMoments": (2, 3, "restart: optimizer state"),  # train, save on two, restart on one
    "OtherDataElsewhere": (2, 3, "train"),  # save, restart elsewhere, train
    "StaleSecondSave": (1, 4, ": weights"),  # save, train, save, load or restart
    "CleansUpTooMuch": (1, 3, "load raised"),  # save, crash, load or restart
    "SwallowsErrors": (1, 2, "load raised"),  # crash, restart
    "SavesHalfway": (1, 1, "crash: groups"),  # crash
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


@pytest.mark.parametrize("fault", FUZZED, ids=lambda fault: f"{fault.rule}-{fault.name}")
def test_fault_is_found_and_made_small(bench: Bench, fault: Fault) -> None:
    with bench.session(fault.adapter_ref, profile=fault.profile) as judge:
        verdict = judge.judge(get_rule(fault.rule), None)
        assert verdict.outcome is Outcome.FAILED, verdict.measurements
        assert fault.subject in [violation.subject for violation in verdict.violations]
        replay = read_replay(Path(verdict.replay))
    *size, moment = SMALLEST[fault.name]
    assert _size(replay.suite, replay.example) == tuple(size), replay.shown
    assert str(moment) in verdict.violations[0].moment


def _size(suite: str, example: dict[str, Any]) -> tuple[int, ...]:
    if suite in ("mesh pair", "lifecycle"):
        plan = Plan.from_json(example)
        meshes = [plan.mesh, *(step.mesh for step in plan.steps if step.mesh is not None)]
        return max(mesh.world_size for mesh in meshes), len(plan.steps)
    found = [spec for _, spec in trees.tensors(trees.from_json(example["tree"]))]
    ranks = MeshSpec.parse(example["mesh"]).world_size
    return ranks, len(found), sum(spec.numel for spec in found)


def test_careful_adapter_has_no_fault(stage: StageFactory) -> None:
    some = Profile("some", examples=100, shrinks=1, derandomize=True)
    outcome = search(RoundTripSuite(stage("pytest_cplife.selftest.faults.careful:Careful")), some)
    assert outcome.found is None, outcome.found
    assert outcome.examples > 60
