"""Faults of one geometry each are found within the gate's budget and made as small as they get."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_cplife.fuzz.profiles import GATE, Profile
from pytest_cplife.fuzz.roundtrip import STRIDE, RoundTrip
from pytest_cplife.fuzz.search import search
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite, StrideSuite
from pytest_cplife.fuzz.trees import tensors
from tests.fuzz.conftest import StageFactory


@dataclass(frozen=True)
class Smallest:
    """The size that a fault's smallest example has: ranks, tensors, elements of all of them."""

    ranks: int
    tensors: int
    elements: int
    moment: str


FAULTS = {
    "UnevenLastShard": Smallest(2, 1, 1, "to_plain: shape"),
    "EmptyShard": Smallest(2, 1, 1, "to_plain: bytes"),
    "StridedOrder": Smallest(4, 1, 4, "to_plain: bytes"),
    "OneElement": Smallest(2, 1, 1, "to_plain: shape"),
    "SameShape": Smallest(2, 2, 2, "to_plain: bytes"),
    "SwappedMesh": Smallest(4, 1, 1, "realign: local shape"),
    "SignOfZero": Smallest(2, 1, 1, "to_plain: bytes"),
    "ThroughFloat": Smallest(2, 1, 1, "to_plain: bytes"),
    "IgnoredStride": Smallest(2, 1, 2, "to_plain: bytes"),
    "IgnoredOffset": Smallest(2, 1, 1, "to_plain: bytes"),
    "SecondDimension": Smallest(2, 1, 4, "to_plain: bytes"),
    "NoDimension": Smallest(2, 1, 1, "realign: kind"),
    "TallTensor": Smallest(2, 1, 65, "to_plain: bytes"),
    "TransposedValues": Smallest(2, 1, 4, "realign: bytes"),
    "TransposedTemplate": Smallest(2, 1, 4, "realign: stride"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found_and_made_small(fault: str, stage: StageFactory) -> None:
    made = RoundTripSuite if FAULTS[fault].moment != STRIDE else StrideSuite
    suite = made(stage(f"tests.fuzz.geometry_faults:{fault}"))
    outcome = search(suite, GATE)
    assert outcome.found is not None, f"not found in {outcome.examples} examples"
    example: RoundTrip = outcome.found.example
    found = list(tensors(example.tree))
    seen = Smallest(
        example.mesh.world_size,
        len(found),
        sum(spec.numel for _, spec in found),
        outcome.found.violations[0].moment,
    )
    print(outcome.first_at, outcome.examples, f"{outcome.seconds:.1f}s", suite.show(example))
    assert seen == FAULTS[fault], suite.show(example)


def test_careful_adapter_has_no_fault(stage: StageFactory) -> None:
    some = Profile("some", examples=100, shrinks=1, derandomize=True)
    outcome = search(RoundTripSuite(stage("tests.fuzz.careful:Careful")), some)
    assert outcome.found is None, outcome.found
    assert outcome.examples > 60
