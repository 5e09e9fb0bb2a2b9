"""The model that plans are judged by: what an uninterrupted run is like after each step.

Whatever a plan does in between, a run after step s is the uninterrupted run after step s: bit for
bit where all of it happened on one mesh, within the meshes' own differences where not. So the
model knows nothing of saving and loading, and shares nothing with what is judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import torch

from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.compare import as_doubles
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import Case, Declared
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Violation

Train = Callable[[MeshSpec, int, bool], list[Moment]]
"""Trains on a mesh from the start without interruption, with gradients that are off by a rounding
error where it is told to; the moments after steps 0, 1, ..."""

_SAFETY = 4.0
_ROUNDING = 1e-6
"""What a float32 weight may be off by, relative to the tensor, where the meshes happen to agree."""


@dataclass(slots=True)
class Trajectories:
    """Uninterrupted runs, one per mesh, made when first asked for and as far as asked for.

    Attributes:
        usual: steps that most plans need, so that the first run on a mesh makes them in one go.
        bitwise: False where the trainer declares that a resumed run may differ by rounding.
    """

    train: Train
    assembler: Assembler
    meshes: tuple[MeshSpec, ...]
    usual: int = 5
    bitwise: bool = True
    _made: dict[tuple[MeshSpec, bool], list[Moment]] = field(default_factory=dict)
    _noise: dict[tuple[int, MeshSpec | None], dict[str, float]] = field(default_factory=dict)
    _exact: dict[MeshSpec, bool] = field(default_factory=dict)

    def at(self, spec: MeshSpec, step: int, *, nudged: bool = False) -> Moment:
        """The uninterrupted run on `spec` after `step` steps, or the one that rounding disturbs."""
        if len(self._made.get((spec, nudged), ())) <= step:
            steps = max(self.usual, step + step // 2)
            self._made[spec, nudged] = self.train(spec, steps, nudged)
        return self._made[spec, nudged][step]

    def exact(self, spec: MeshSpec) -> bool:
        """Whether a run on `spec` has the same bytes every time; where not, bytes prove nothing."""
        if not self.bitwise:
            return False
        if spec not in self._exact:
            first, again = self.at(spec, 2), self.train(spec, 2, False)[2]
            self._exact[spec] = not list(same_state(self.assembler, first, again, "twin"))
        return self._exact[spec]

    def off_course(
        self, seen: Moment, step: int, meshes: frozenset[MeshSpec], moment: str
    ) -> Iterator[Violation]:
        """Find weights that are not where the uninterrupted run has them after `step` steps.

        Args:
            meshes: all that this state has been on.
        """
        spec = model_mesh(meshes)
        model = self.at(spec, step)
        if len(meshes) == 1:
            other = list(same_state(self.assembler, model, seen, moment))
            # A second run is made only where there is something that it may excuse.
            if not other or self.exact(spec):
                yield from other
                return
        noise = self.noise(step, spec if len(meshes) == 1 else None)
        before = self.at(spec, max(step - 1, 0))
        for name, records in model.parameters.items():
            if name not in seen.parameters:
                continue
            wanted, found = self.full(model, name), self.full(seen, name)
            budget = _SAFETY * noise[name] + _rounding(records) * _norm(wanted)
            distance = _norm(found - wanted)
            # Where the meshes themselves are as far apart as a step is long nothing can be told.
            blind = budget > 0.5 * _norm(wanted - self.full(before, name))
            if not distance <= budget and not blind:
                yield Violation(
                    name,
                    f"within {budget:.3g} (L2) of the uninterrupted run after {step} steps",
                    f"{records[0].dtype} weights {distance:.3g} away",
                    moment,
                    step=step,
                    difference=distance,
                    budget=budget,
                )

    def noise(self, step: int, alone: MeshSpec | None = None) -> dict[str, float]:
        """How far apart the meshes' uninterrupted runs are after `step` steps, by parameter.

        At least the median over the parameters of the share of its movement by which one is apart:
        a parameter of one element may by luck be where it is on another mesh, or under other noise.

        Args:
            alone: the mesh of a state that has been on no other, and differs all the same: what
                rounding makes of a run there counts as well.
        """
        key = (step, alone)
        if key not in self._noise:
            moments = [self.at(spec, step) for spec in self.meshes]
            if alone is not None:
                moments.append(self.at(alone, step, nudged=True))
            apart = {
                name: max(
                    _norm(self.full(a, name) - self.full(b, name))
                    for i, a in enumerate(moments)
                    for b in moments[i:]
                )
                for name in moments[0].parameters
            }
            start = self.at(self.meshes[0], 0)
            moved = {
                name: _norm(self.full(moments[0], name) - self.full(start, name)) for name in apart
            }
            shares = [apart[name] / move for name, move in moved.items() if move > 0]
            share = statistics.median(shares) if shares else 0.0
            self._noise[key] = {
                name: max(distance, share * moved[name]) for name, distance in apart.items()
            }
        return self._noise[key]

    def full(self, moment: Moment, name: str) -> torch.Tensor:
        return as_doubles(self.assembler.full(moment.parameters[name]))


def model_mesh(meshes: Collection[MeshSpec]) -> MeshSpec:
    """The mesh whose uninterrupted run is the model for a state that has been on `meshes`."""
    return min(meshes, key=str)


def _rounding(records: list[TensorRecord]) -> float:
    """In few bits one rounding that falls the other way is more than the meshes' usual noise."""
    dtype = getattr(torch, records[0].dtype.removeprefix("torch."))
    if not (dtype.is_floating_point or dtype.is_complex):
        return _ROUNDING
    return max(_ROUNDING, torch.finfo(dtype).eps / 2)


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def same_state(
    assembler: Assembler, expected: Moment, observed: Moment, moment: str
) -> Iterator[Violation]:
    """Find where one state of a run is not another, bit for bit, also between meshes."""
    case = Case(None, Declared(), {})
    tables = (
        ("weights", expected.parameters, observed.parameters),
        ("buffers", _first(expected.buffers), _first(observed.buffers)),
        ("optimizer state", expected.optimizer_state, observed.optimizer_state),
        ("averages", expected.ema, observed.ema),
    )
    for what, left, right in tables:
        for finding in compare(case, assembler, what, left, right, moment=f"{moment}: {what}"):
            if isinstance(finding, Violation):
                yield finding
    for name, value in expected.ranks[0].counters.items():
        for snapshot in observed.ranks:
            if snapshot.counters[name] != value:
                seen = str(snapshot.counters[name])
                yield Violation(name, str(value), seen, f"{moment}: counters")
                break
    for a, b in zip(expected.groups, observed.groups, strict=False):
        for key, record in a.values.items():
            if b.values.get(key) != record:
                subject = f"group {a.index} {key}"
                yield Violation(
                    subject, _text(record), _text(b.values.get(key)), f"{moment}: groups"
                )


def _text(record: object) -> str:
    return str(getattr(record, "text", record))


def _first(columns: dict[str, list[TensorRecord]]) -> dict[str, list[TensorRecord]]:
    """Plain buffers as rank 0 has them: a file has room for one value."""
    return {
        name: records if records[0].kind == "dtensor" else records[:1]
        for name, records in columns.items()
    }
