"""The suites that train: pairs of meshes, and whole lifecycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_cplife.fuzz.lifecycle import Lifecycle
from pytest_cplife.fuzz.plans import Plan, Step
from pytest_cplife.fuzz.smaller import smaller_plans
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation
from pytest_cplife.strategies import save_load_plans


class LifecycleSuite:
    """Plans of any kind: train, save, load, restart elsewhere, swap the averages, crash."""

    name = "lifecycle"
    cost = 12

    def __init__(self, stage: FuzzStage, driver: Lifecycle | None = None) -> None:
        """
        Args:
            driver: one of the same stage that other suites use as well, and that has lived already.
        """
        self.stage = stage
        self.driver = Lifecycle(stage) if driver is None else driver

    def examples(self) -> SearchStrategy[Plan]:
        # Long ones: to start a run costs as much as several steps, and `smaller` shortens plans.
        return save_load_plans(
            self.stage.meshes, operations=self.driver.operations, min_steps=5, max_steps=10
        )

    def check(self, example: Plan) -> Sequence[Violation] | None:
        return self.driver.carry_out(example)

    def smaller(self, example: Plan) -> Iterator[Plan]:
        yield from smaller_plans(example)
        for spec in self.stage.meshes:
            for index, step in enumerate(example.steps):
                if step.mesh is not None and self._before(spec, step.mesh):
                    steps = list(example.steps)
                    steps[index] = replace(step, mesh=spec)
                    yield replace(example, steps=tuple(steps))
            if self._before(spec, example.mesh):
                yield replace(example, mesh=spec)

    def _before(self, a: MeshSpec, b: MeshSpec) -> bool:
        order = list(self.stage.meshes)
        return a in order and b in order and order.index(a) < order.index(b)

    def show(self, example: Plan) -> str:
        return str(example)

    def to_json(self, example: Plan) -> dict[str, Any]:
        return example.to_json()

    def from_json(self, data: dict[str, Any]) -> Plan:
        return Plan.from_json(data)


class MeshPairSuite(LifecycleSuite):
    """Train and save on one mesh, load on another, train on."""

    name = "mesh pair"

    def examples(self) -> SearchStrategy[Plan]:
        before, after = self.stage.steps
        mesh = st.sampled_from(list(self.stage.meshes))
        ways = [way for way in ("save", "save_sharded") if way in self.driver.operations]
        return st.builds(
            mesh_pair,
            mesh,
            mesh,
            st.integers(1, before),
            st.integers(0, after),
            st.sampled_from(ways),
        )


def mesh_pair(a: MeshSpec, b: MeshSpec, before: int, after: int, way: str = "save") -> Plan:
    """The plan: `before` steps on `a`, save, load on `b`, `after` steps."""
    sharded = way == "save_sharded"
    return Plan(
        a,
        (
            Step("train", count=before),
            Step(way, slot=0, sharded=sharded),
            Step("restart", slot=0, sharded=sharded, mesh=b),
            *([Step("train", count=after)] if after else []),
        ),
    )
