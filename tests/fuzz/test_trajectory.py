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


def test_luck_of_one_element_is_no_budget(tmp_path: Path) -> None:
    """Where noise sets the meshes apart, a weight that happens to agree may be apart as well."""
    lab = Lab(TensorStore(tmp_path))

    def moment(gain: float, others: float) -> Moment:
        table = {name: lab.sharded([others, others]) for name in "abc"}
        state = lab.snapshots(parameters={"gain": lab.plain(gain), **table})
        return Moment("plan", "train", tuple(state))

    steps = {
        ONE: [moment(0.0, 0.0), moment(0.5, 0.5), moment(1.0, 1.0)],
        TWO: [moment(0.0, 0.0), moment(0.5, 0.5), moment(1.0, 1.03)],
    }

    def found(gain: float) -> list[str]:
        model = Trajectories(
            lambda spec, count, nudged: steps[spec], lab.assembler, (ONE, TWO), usual=2
        )
        seen = model.off_course(moment(gain, 1.01), 2, frozenset((ONE, TWO)), "train")
        return [violation.subject for violation in seen]

    assert found(1.05) == []
    assert found(1.2) == ["gain"]
