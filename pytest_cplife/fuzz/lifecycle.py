"""Carrying out plans on live worlds and judging each step by the model of `trajectory`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.evidence.assemble import Assembler, CannotAssemble
from pytest_cplife.evidence.run import Moment
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.fuzz.draws import Draws
from pytest_cplife.fuzz.life import label
from pytest_cplife.fuzz.lives import Chapter, Lived, Lives, Past
from pytest_cplife.fuzz.plans import SAVES, Plan, Step
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.trajectory import Trajectories, model_mesh, same_state
from pytest_cplife.loading import load_adapter
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.common import replicas_agree, same_layout
from pytest_cplife.rules.model import Violation


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of a state.

    Attributes:
        moment: what it looked like.
        meshes: all that it has been on.
        unknown: it has trained on noise that the model has not; where it has to be nobody knows.
    """

    moment: Moment
    meshes: frozenset[MeshSpec]
    unknown: bool = False


@dataclass(slots=True)
class _Saved:
    """The checkpoints that are whole, by slot, in the order in which they were written."""

    states: dict[int, _State] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)

    def write(self, step: Step, state: _State) -> None:
        self.states[step.slot] = state
        self.steps[step.slot] = step

    def source(self, wanted: Step | None, mesh: MeshSpec) -> Step | None:
        """The restart that can be made: from the slot that is wanted, else from the last one."""
        if wanted is not None and wanted.slot in self.states:
            return wanted
        if not self.states:
            return None
        last = list(self.steps.values())[-1]
        return Step("restart", slot=last.slot, sharded=last.sharded, mesh=mesh)


class _Ended(Exception):
    """A life that did not end well."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.observed)
        self.violation = violation

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
        self.lives = Lives(stage, self.adapter, self.assembler.store.root)
        self.trajectories = Trajectories(
            self._uninterrupted,
            self.assembler,
            tuple(stage.meshes),
            usual=sum(stage.steps),
            bitwise=self.adapter.bitwise_resume,
        )
        self._drawn: dict[MeshSpec, list[Draws]] = {}

    @property
    def capabilities(self) -> frozenset[str]:
        """What the adapter's runs offer, as one on the first mesh says; empty where none starts."""
        [journal, *_] = self.lives.of((Chapter(self.stage.meshes[0], ()),)).journals
        return frozenset(journal.facts.get("capabilities", ()))

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
        if self.stage.launcher.name != "threads":
            # There a disk that is full for one rank is full for all of them, and for pytest.
            offered.append("crash")
        return tuple(offered)

    def carry_out(self, plan: Plan) -> tuple[Violation, ...] | None:
        """Everything that is wrong at the first step of `plan` at which something is.

        None where the trainer turns out not to offer an operation, so that the plan says nothing.
        """
        try:
            for problems in self._judged(plan):
                if problems:
                    return tuple(problems)
        except _Ended as ended:
            return None if ended.not_offered else (ended.violation,)
        except CannotAssemble as problem:
            return (Violation("state", "full tensors", str(problem), "cannot assemble"),)
        return ()

    def _judged(self, plan: Plan) -> Iterator[list[Violation]]:
        """Step by step what is wrong.

        Raises:
            _Ended: a run came to an end that it should not have come to.
        """
        saved, past, mesh = _Saved(), Past(), plan.mesh
        source: Step | None = None
        todo = plan.steps
        while True:
            chapter = Chapter(mesh, _until_restart(todo), source)
            past = (*past, chapter)
            lived = self.lives.of(past)
            if lived.failure is not None and not lived.crashed:
                raise _Ended(lived.violation)
            done = yield from self._chapter(chapter, lived, saved)
            if done == len(todo):
                return
            restart = todo[done] if done == len(chapter.steps) else None
            todo = todo[done + 1 :]
            if restart is not None and restart.mesh is not None:
                mesh = restart.mesh
            # Where a crash ended it the job comes back where it was.
            source = saved.source(restart, mesh)

    def _chapter(
        self, chapter: Chapter, lived: Lived, saved: _Saved
    ) -> Generator[list[Violation], None, int]:
        """The same for one run; fills `saved`, and returns how many of its steps were done."""
        moments, spec = lived.moments, chapter.mesh
        start = moments["start"]
        state = _State(start, frozenset([spec]))
        yield list(self._on_course(state, "start", start))
        if chapter.source is not None:
            loaded = saved.states[chapter.source.slot]
            state = _State(moments["load"], loaded.meshes | {spec}, loaded.unknown)
            yield list(self._came_back(loaded, state, "restart", start))
        for number, step in enumerate(chapter.steps):
            name = label(number, step)
            if step.operation == "train":
                for count in range(step.count * self.lives.unit):
                    drawn = Draws.of(lived.journals, f"{name} {count}")
                    state = self._trained(state, moments[f"{name} {count}"], drawn)
                    yield list(self._on_course(state, "train", start))
                continue
            if name not in moments:
                return number
            after = moments[name]
            if step.operation in SAVES:
                yield list(same_state(self.assembler, state.moment, after, step.operation))
                if lived.wrote(step, name):
                    saved.write(step, state)
            elif step.operation == "load":
                loaded = saved.states[step.slot]
                state = _State(after, loaded.meshes | {spec}, loaded.unknown)
                yield list(self._came_back(loaded, state, "load", start))
            elif step.operation == "swap_ema":
                yield list(self._swapped(state, moments[f"{name} inside"], after))
        return len(chapter.steps)

    def _trained(self, before: _State, moment: Moment, drawn: Draws) -> _State:
        """The state after a step that has drawn what `drawn` says."""
        meshes, unknown = before.meshes, before.unknown
        if drawn.states and not unknown:
            spec, step = model_mesh(meshes), moment.ranks[0].counters["global_step"]
            self.trajectories.at(spec, step)
            unknown = drawn.otherwise(
                self._drawn[spec][:step],
                crossed=len(meshes) > 1,
                policy=self.adapter.rng_policy,
            )
        return _State(moment, meshes, unknown)

    def _on_course(self, state: _State, what: str, start: Moment) -> Iterator[Violation]:
        step = state.moment.ranks[0].counters["global_step"]
        if not state.unknown:
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

    def _uninterrupted(self, spec: MeshSpec, steps: int, nudged: bool) -> list[Moment]:
        units = -(-steps // self.lives.unit)
        lived = self.lives.alone(Chapter(spec, (Step("train", count=units),)), nudged=nudged)
        if lived.failure is not None:
            raise _Ended(lived.violation)
        moments, made = lived.moments, [f"0 train {n}" for n in range(units * self.lives.unit)]
        if len(made) > len(self._drawn.get(spec, ())):
            self._drawn[spec] = [Draws.of(lived.journals, name) for name in made]
        return [moments["start"], *(moments[name] for name in made)]


def _until_restart(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(takewhile(lambda step: step.operation != "restart", steps))
