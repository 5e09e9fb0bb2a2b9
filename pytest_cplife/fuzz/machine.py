"""The lifecycle as a hypothesis state machine, for a user's own tests.

::

    from pytest_cplife.fuzz.machine import lifecycle_machine

    TestMyTrainer = lifecycle_machine(driver).TestCase

A machine's rules only note what is to be done; the plan is carried out when the example ends. So
a run lives within one call on its ranks, and nothing has to be kept alive between two draws.
"""

from __future__ import annotations

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pytest_cplife.fuzz.lifecycle import Lifecycle
from pytest_cplife.fuzz.plans import Plan, Step
from pytest_cplife.mesh import MeshSpec


class LifecycleMachine(RuleBasedStateMachine):
    """Trains, saves, loads, restarts and crashes a trainer; fails where it leaves its course."""

    driver: Lifecycle
    """Set by :func:`lifecycle_machine`."""

    def __init__(self) -> None:
        super().__init__()
        self.mesh: MeshSpec | None = None
        self.steps: list[Step] = []
        self.saved: list[Step] = []

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.mesh = data.draw(st.sampled_from(list(self.driver.stage.meshes)))

    @rule(count=st.integers(1, 2))
    def train(self, count: int) -> None:
        self.steps.append(Step("train", count=count))

    @rule()
    def save(self) -> None:
        self._save(Step("save", slot=len(self.steps)))

    @precondition(lambda self: "save_sharded" in self.driver.operations)
    @rule()
    def save_sharded(self) -> None:
        self._save(Step("save_sharded", slot=len(self.steps), sharded=True))

    @precondition(lambda self: "crash" in self.driver.operations)
    @rule(data=st.data(), rank=st.integers(0, 1))
    def crash(self, data: st.DataObject, rank: int) -> None:
        """Save while one rank cannot write."""
        sharded = "save_sharded" in self.driver.operations and data.draw(st.booleans())
        self._save(Step("crash", slot=len(self.steps), sharded=sharded, rank=rank))

    @precondition(lambda self: self.whole and self.driver.adapter.live_load)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        saved = data.draw(st.sampled_from(self.whole))
        self.steps.append(Step("load", slot=saved.slot, sharded=saved.sharded))

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """Start again, perhaps on other ranks; after a crash from the last save that was whole."""
        saved = data.draw(st.sampled_from(self.saved))
        mesh = data.draw(st.sampled_from(list(self.driver.stage.meshes)))
        self.steps.append(Step("restart", slot=saved.slot, sharded=saved.sharded, mesh=mesh))

    @precondition(lambda self: "swap_ema" in self.driver.operations)
    @rule()
    def swap_ema(self) -> None:
        self.steps.append(Step("swap_ema"))

    def teardown(self) -> None:
        if self.mesh is None or not self.steps:
            return
        plan = Plan(self.mesh, tuple(self.steps))
        note(str(plan))
        violations = self.driver.carry_out(plan)
        if violations:
            first = violations[0]
            raise AssertionError(
                f"{plan}\n{first.moment}, {first.subject}: expected {first.expected},"
                f" observed {first.observed} ({len(violations)} in all)"
            )

    @property
    def whole(self) -> list[Step]:
        """What was saved without a crash."""
        return [step for step in self.saved if step.operation != "crash"]

    def _save(self, step: Step) -> None:
        self.steps.append(step)
        self.saved.append(step)


def lifecycle_machine(driver: Lifecycle) -> type[LifecycleMachine]:
    """A machine class for one trainer, to run with ``.TestCase`` or
    :func:`hypothesis.stateful.run_state_machine_as_test`, under settings of your own."""
    return type("LifecycleMachineOf", (LifecycleMachine,), {"driver": driver})
