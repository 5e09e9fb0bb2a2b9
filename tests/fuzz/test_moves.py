"""torch's own operations: what is documented to fail still does, and the rest is right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.tensor import DTensor

from pytest_cplife.fuzz.moves import OPERATIONS, Move, MoveSuite, try_move
from pytest_cplife.fuzz.profiles import Profile
from pytest_cplife.fuzz.ranks import Reports
from pytest_cplife.fuzz.search import search
from pytest_cplife.fuzz.tensors import TensorSpec
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec
from tests.fuzz.conftest import StageFactory

PAGE = Path(__file__).parents[2] / "docs" / "torch-findings.md"
FINDINGS = [
    json.loads(block)
    for block in re.findall(r"```json\n(.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL)
]
FEW = Profile("few", examples=25, shrinks=20, derandomize=True)


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda f: f"{f['operation']}-{f['raises']}")
def test_documented_finding_is_still_there(finding: dict[str, Any], stage: StageFactory) -> None:
    suite = MoveSuite(stage("pytest_cplife.fuzz.bare:Bare"), finding["operation"])
    violations = suite.check(suite.from_json(finding))
    assert {violation.moment for violation in violations} == {f"raised {finding['raises']}"}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_divides_or_not_is_moved_right(operation: str, stage: StageFactory) -> None:
    made = stage("pytest_cplife.fuzz.bare:Bare", ["dp=2"])
    suite = MoveSuite(made, operation, dtypes=("float32", "int64"), strided=False)
    outcome = search(suite, FEW)
    assert outcome.found is None, outcome.found
    assert outcome.examples > 10


def astray(rank: Rank, move: Move, folder: Path) -> Reports:
    """On a rank: the same with a torch whose results are off by one."""
    redistribute = DTensor.redistribute
    DTensor.redistribute = lambda *args, **kwargs: redistribute(*args, **kwargs) + 1  # type: ignore
    try:
        return try_move(rank, move, folder)
    finally:
        DTensor.redistribute = redistribute  # type: ignore[method-assign]


@pytest.mark.parametrize("target", ["R", "S(0)"])
@pytest.mark.parametrize("place", ["P(sum)", "S(0)"])
def test_wrong_bytes_are_told(place: str, target: str, stage: StageFactory) -> None:
    made, spec = stage("pytest_cplife.fuzz.bare:Bare", ["dp=2"]), MeshSpec.parse("dp=2")
    move = Move(spec, "redistribute", TensorSpec((3,), placements=(place,)), (target,))
    assert not made.judge(spec, try_move, move, made.new_folder())
    violations = made.judge(spec, astray, move, made.new_folder())
    assert {violation.moment for violation in violations} == {"redistribute: bytes"}


def test_smaller_moves_keep_the_dimensions_that_the_target_counts(stage: StageFactory) -> None:
    suite = MoveSuite(stage("pytest_cplife.fuzz.bare:Bare"), "redistribute")
    tensor = TensorSpec((3, 5), placements=("S(1)",))
    moves = list(suite.smaller(Move(MeshSpec.parse("dp=2"), "redistribute", tensor, ("S(1)",))))
    assert moves and all(len(move.tensor.shape) == 2 for move in moves)
