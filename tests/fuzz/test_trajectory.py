"""How far a state is from the uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.evidence.run import Moment
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.fuzz.trajectory import Trajectories
from pytest_cplife.mesh import MeshSpec
from tests.rules.builders import Lab

ONE, TWO = MeshSpec.parse("dp=1"), MeshSpec.parse("dp=2")


@pytest.mark.parametrize(
    ("seen", "found"),
    [([2.0, 3.0], []), ([2.0, 3.5], ["w"]), ([2.0 + 0j, 3 + 0j], []), ([2.0 + 0j, 3 + 1j], ["w"])],
)
def test_all_of_a_number_counts(tmp_path: Path, seen: list[Any], found: list[str]) -> None:
    """Also the imaginary part."""
    lab = Lab(TensorStore(tmp_path))
    kind = type(seen[0])

    def moment(*values: Any) -> Moment:
        state = lab.snapshots(parameters={"w": lab.sharded(list(map(kind, values)))})
        return Moment("plan", "train", tuple(state))

    steps = [moment(0, 0), moment(2, 3)]
    model = Trajectories(lambda spec, count, nudged: steps, lab.assembler, (ONE, TWO), usual=1)
    violations = model.off_course(moment(*seen), 1, frozenset((ONE, TWO)), "train")
    assert [violation.subject for violation in violations] == found
