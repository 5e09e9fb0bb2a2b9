"""Carrying out plans on live worlds and judging each step by the model of `trajectory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.evidence.assemble import Assembler, CannotAssemble
from pytest_cplife.evidence.journal import RankJournal, read_journal
from pytest_cplife.evidence.run import Moment
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.fuzz.life import Life, live
from pytest_cplife.fuzz.plans import Plan, Step
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.trajectory import Trajectories, same_state
from pytest_cplife.launchers.base import WorldFailure
from pytest_cplife.loading import load_adapter
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.common import replicas_agree, same_layout
from pytest_cplife.rules.model import Violation
from pytest_cplife.scenarios.order import Order


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of a state: what it looked like, and all the meshes it has been on."""

    moment: Moment
    meshes: frozenset[MeshSpec]


@dataclass(slots=True)
class _Ended(Exception):
    """A life that did not end well."""

    violation: Violation

    @property
    def not_offered(self) -> bool:
        """An optional method that only says when it is called that it is not there."""
        optional = self.violation.subject in ("save_sharded", "swap_ema")
        return optional and self.violation.moment.endswith("NotImplementedError")


class Lifecycle:
    """Drives one adapter through plans.

    Usable alone::

        driver = Lifecycle(FuzzStage("mymod:Adapter", launcher, folder, meshes))
        violations = driver.carry_out(plan)
    """

    def __init__(self, stage: FuzzStage) -> None:
        self.stage = stage
        self.adapter: type[LifecycleAdapter] = load_adapter(stage.adapter)
        self.assembler = Assembler(TensorStore(stage.folder / "tensors"))
        self.trajectories = Trajectories(self._uninterrupted, self.assembler, tuple(stage.meshes))
        self._capabilities: frozenset[str] | None = None

    @property
    def capabilities(self) -> frozenset[str]:
        """What the adapter's runs offer, as a run on the first mesh says."""
        if self._capabilities is None:
            spec = self.stage.meshes[0]
            life = self._life(spec, (), self.stage.new_folder())
            [journal, *_] = self._lived(life)
            self._capabilities = frozenset(journal.facts["capabilities"])
        return self._capabilities

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that plans for this adapter may have."""
        offered = ["train", "save", "restart"]
        if self.adapter.live_load:
            offered.append("load")
        if {"save_sharded", "load_sharded"} <= self.capabilities:
            offered.append("save_sharded")
        if "ema_weights" in self.capabilities:
            offered.append("swap_ema")
        return tuple(offered)

    def carry_out(self, plan: Plan) -> tuple[Violation, ...]:
        """Everything that is wrong at the first step of `plan` at which something is."""
        checkpoints = self.stage.new_folder()
        slots: dict[int, _State] = {}
        spec, source = plan.mesh, None
        for steps, restart in _lives(plan):
            life = self._life(spec, steps, checkpoints, source)
            try:
                moments = _moments(self._lived(life))
                for problems in self._judged(life, moments, slots, source):
                    if problems:
                        return tuple(problems)
            except _Ended as ended:
                return () if ended.not_offered else (ended.violation,)
            except CannotAssemble as problem:
                return (Violation("state", "full tensors", str(problem), "cannot assemble"),)
            if restart is not None:
                assert restart.mesh is not None
                spec, source = restart.mesh, restart
        return ()

    def _judged(
        self, life: Life, moments: dict[str, Moment], slots: dict[int, _State], source: Step | None
    ) -> Iterator[list[Violation]]:
        """Step by step what is wrong; fills `slots` with what was saved."""
        spec = life.order.spec
        assert spec is not None
        start = moments["start"]
        state = _State(start, frozenset([spec]))
        yield list(self._on_course(state, "start", start))
        if source is not None:
            state = self._loaded(slots[source.slot], moments["load"], spec)
            yield list(self._came_back(slots[source.slot], state, "restart", start))
        for number, step in enumerate(life.steps):
            label = f"{number} {step.operation}"
            if step.operation == "train":
                for count in range(step.count * life.unit):
                    state = _State(moments[f"{label} {count}"], state.meshes)
                    yield list(self._on_course(state, "train", start))
                continue
            after = moments[label]
            if step.operation in ("save", "save_sharded"):
                yield list(same_state(self.assembler, state.moment, after, step.operation))
                slots[step.slot] = state
            elif step.operation == "load":
                saved = slots[step.slot]
                state = self._loaded(saved, after, spec)
                yield list(self._came_back(saved, state, "load", start))
            elif step.operation == "swap_ema":
                yield list(self._swapped(state, moments[f"{label} inside"], after))

    def _loaded(self, saved: _State, now: Moment, spec: MeshSpec) -> _State:
        return _State(now, saved.meshes | {spec})

    def _on_course(self, state: _State, what: str, start: Moment) -> Iterator[Violation]:
        step = state.moment.ranks[0].counters["global_step"]
        yield from self.trajectories.off_course(state.moment, step, state.meshes, what)
        yield from self._sound(state, what, start)

    def _came_back(
        self, saved: _State, state: _State, what: str, start: Moment
    ) -> Iterator[Violation]:
        yield from same_state(self.assembler, saved.moment, state.moment, what)
        yield from self._sound(state, what, start)

    def _sound(self, state: _State, what: str, start: Moment) -> Iterator[Violation]:
        """Find what must never be otherwise, whatever was done."""
        columns = state.moment.parameters
        yield from replicas_agree(columns, moment=f"{what}: replicas")
        yield from same_layout(start.parameters, columns, moment=f"{what}: placements")

    def _swapped(self, state: _State, inside: Moment, after: Moment) -> Iterator[Violation]:
        yield from same_state(self.assembler, state.moment, after, "swap_ema: afterwards")
        for name, average in state.moment.ema.items():
            swapped = inside.parameters.get(name)
            # An average of another precision is rounded on the way in; the EMA rules know how.
            if swapped is None or swapped[0].dtype != average[0].dtype:
                continue
            if self.assembler.digest(swapped) != self.assembler.digest(average):
                yield Violation(name, "the average", "other bytes", "swap_ema: inside")

    def _life(
        self,
        spec: MeshSpec,
        steps: tuple[Step, ...],
        checkpoints: Path,
        source: Step | None = None,
    ) -> Life:
        order = Order(
            adapter=self.stage.adapter,
            spec=spec,
            folder=self.stage.new_folder(),
            store=self.assembler.store.root,
            steps=self.stage.steps,
            seed=self.stage.seed,
            source=None if source is None else checkpoints / f"slot{source.slot}",
        )
        sharded = source is not None and source.sharded
        return Life(order, sharded, steps, checkpoints, self._unit)

    def _lived(self, life: Life) -> list[RankJournal]:
        spec = life.order.spec
        assert spec is not None
        life.order.prepare()
        life.order.store.mkdir(exist_ok=True)
        bare = self.adapter.initialises_process_group
        failure = None
        try:
            self.stage.run(spec, live, life, bare=bare)
        except WorldFailure as error:
            failure = error
        journals = [read_journal(life.order.journal(rank)) for rank in range(spec.world_size)]
        if failure is not None:
            raise _Ended(_explained(failure, journals))
        return journals

    @property
    def _unit(self) -> int:
        adapter = self.adapter
        return (adapter.steps_per_epoch or 1) if adapter.save_points == "epoch_end" else 1

    def _uninterrupted(self, spec: MeshSpec, steps: int) -> list[Moment]:
        units = -(-steps // self._unit)
        life = self._life(spec, (Step("train", count=units),), self.stage.new_folder())
        moments = _moments(self._lived(life))
        made = range(units * self._unit)
        return [moments["start"], *(moments[f"0 train {count}"] for count in made)]


def _lives(plan: Plan) -> Iterator[tuple[tuple[Step, ...], Step | None]]:
    """The plan cut at its restarts: the steps of each run, and the restart that follows."""
    steps: list[Step] = []
    for step in plan.steps:
        if step.operation == "restart":
            yield tuple(steps), step
            steps = []
        else:
            steps.append(step)
    yield tuple(steps), None


def _moments(journals: list[RankJournal]) -> dict[str, Moment]:
    first: dict[str, Snapshot] = journals[0].snapshots
    return {
        name: Moment("plan", name, tuple(journal.snapshots[name] for journal in journals))
        for name in first
    }


def _explained(failure: WorldFailure, journals: list[RankJournal]) -> Violation:
    first = failure.primary
    phase = journals[first.rank].open_phase or next(
        (journal.open_phase for journal in journals if journal.open_phase), ""
    )
    return Violation(
        subject=phase or "life",
        expected="completes on every rank",
        observed=first.headline(),
        moment=f"{phase} {first.kind} {first.type_name}".strip(),
        ranks=tuple(f.rank for f in failure.failures if not f.secondary),
        detail=str(failure),
    )
