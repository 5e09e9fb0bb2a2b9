"""torch's own operations: what is documented to fail still does, and the rest is right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.fuzz.moves import OPERATIONS, Move, MoveSuite
from pytest_cplife.fuzz.profiles import Profile
from pytest_cplife.fuzz.search import search
from pytest_cplife.fuzz.tensors import TensorSpec
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


def test_wrong_expectation_is_told(stage: StageFactory) -> None:
    """The comparison can fail: a tensor whose placements wait for a sum is not its own terms."""
    suite = MoveSuite(stage("pytest_cplife.fuzz.bare:Bare", ["dp=2"]), "redistribute")
    move = Move(
        MeshSpec.parse("dp=2"), "redistribute", TensorSpec((2,), placements=("P(sum)",)), ("R",)
    )
    assert [v.moment for v in suite.check(move)] == ["redistribute: bytes"]


def test_smaller_moves_keep_the_dimensions_that_the_target_counts(stage: StageFactory) -> None:
    suite = MoveSuite(stage("pytest_cplife.fuzz.bare:Bare"), "redistribute")
    tensor = TensorSpec((3, 5), placements=("S(1)",))
    moves = list(suite.smaller(Move(MeshSpec.parse("dp=2"), "redistribute", tensor, ("S(1)",))))
    assert moves and all(len(move.tensor.shape) == 2 for move in moves)
