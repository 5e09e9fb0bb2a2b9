"""Steps after a change of mesh: how far they may be from those that the saving mesh makes.

The state at the load is the same bit for bit, data and learning rates are the same, and dropout is
off; what is left is that sums are made in another order. How much that can come to after a few
steps depends on the trainer (Adam divides a gradient by its own size, so that a weight whose
gradient is all but zero follows the rounding), and is therefore measured on the trainer itself: the
saving mesh makes the same steps a second time, from weights that are changed by a few units in
their last place, and with other random streams. Every product and sum then rounds otherwise, as it
does in another order; and a trainer that draws noise of its own is told from one that does not.

For each tensor, with `u` its movement since the load, the measured share is

    r = |u(shaken) - u| / |u|,

with root mean squares over the elements, since a few of them may follow the rounding. The budget of
a step is ``4 max(r, median r) |u| + eps |w|``: the factor of 4 that measured noise is given
everywhere, since it is one sample; at least the median over the tensors, since for a tensor of one
element a sample may be 0 by luck; and the rounding of the weights themselves, which are stored in
`eps`. What is lost on the way (moments, step counts, an lr that is scaled by the number of ranks)
changes a movement by its own size, in single precision some thousand budgets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pytest_cplife.evidence.assemble import Assembler, CannotAssemble
from pytest_cplife.evidence.compare import as_doubles
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import RunEvidence, TensorColumns
from pytest_cplife.rules.case import SAFETY, NotCovered
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.own_noise import OWN_NOISE, other_draws

_USEFUL = 0.4
"""A budget of more than this share of a tensor's movement tells nothing of that tensor."""


@dataclass(frozen=True, slots=True)
class _Budget:
    """The movement of one tensor since the load, and how far another mesh may be from it."""

    movement: float
    allowed: float

    @property
    def useful(self) -> bool:
        return self.allowed <= _USEFUL * self.movement


def same_steps(expected: RunEvidence, observed: RunEvidence, *, origin: str) -> Iterator[Finding]:
    """Find weights that steps on another topology move otherwise than rounding explains.

    Args:
        expected: the run on the saving topology, with the moments ``onward`` and ``shaken``.
        observed: the run elsewhere, with the moments ``onward``.
        origin: where the checkpoint is from, for messages.

    Raises:
        NotCovered: rounding, or noise that is not dropout, moves this trainer's weights as far as
            its first step does; or each topology draws noise of its own.
    """
    steps = [name for name in expected.ranks[0].snapshots if name.startswith("onward ")]
    assembler = observed.assembler
    for number, name in enumerate(steps, start=1):
        budgets = _budgets(assembler, expected, number)
        useful = {subject for subject, budget in budgets.items() if budget.useful}
        if not useful:
            if number == 1:
                raise NotCovered(
                    "rounding, or noise that is not dropout, moves the weights as far as steps do"
                )
            return
        label = f"{observed.name} from {origin}: step {number} after the load"
        wanted, seen = expected.at(name).parameters, observed.at(name).parameters
        worst, found = 0.0, []
        for subject in useful & seen.keys():
            gap = _gap(assembler, wanted[subject], seen[subject])
            budget = budgets[subject]
            worst = max(worst, gap / budget.allowed)
            if not gap <= budget.allowed:
                found.append(
                    Violation(
                        subject,
                        f"the step of the saving mesh, which moves it by {budget.movement:.3g}",
                        "another step",
                        label,
                        step=number,
                        difference=gap,
                        budget=budget.allowed,
                    )
                )
        if found and other_draws(expected, observed, steps[:number]):
            raise NotCovered(OWN_NOISE)
        yield from found
        share = max(budgets[subject].allowed / budgets[subject].movement for subject in useful)
        yield Measurement(f"{label}: share of the budget ({len(useful)} compared)", worst, 1.0)
        yield Measurement(f"{label}: largest budget, as a share of the movement", share, _USEFUL)
        if found:
            return


def _budgets(assembler: Assembler, run: RunEvidence, step: int) -> dict[str, _Budget]:
    before, after = run.at("onward").parameters, run.at(f"onward {step}").parameters
    other, shaken = run.at("shaken").parameters, run.at(f"shaken {step}").parameters
    moved: dict[str, tuple[float, float, float]] = {}
    for name in _trained(before, after):
        start, end = _full(assembler, before[name]), _full(assembler, after[name])
        shaken_start, shaken_end = _full(assembler, other[name]), _full(assembler, shaken[name])
        move = end - start
        # A weight that is a copy of a master comes back to it with the first step, and with it what
        # was changed; its end is then as telling as its movement.
        apart = min(_size((shaken_end - shaken_start) - move), _size(shaken_end - end))
        unit = torch.finfo(getattr(torch, before[name][0].dtype.removeprefix("torch."))).eps
        moved[name] = (_size(move), apart, unit * _size(end))
    shares = sorted(apart / move for move, apart, _ in moved.values() if move > 0)
    middle = shares[len(shares) // 2] if shares else 0.0
    return {
        name: _Budget(move, SAFETY * max(apart, middle * move) + rounding)
        for name, (move, apart, rounding) in moved.items()
        if move > 0
    }


def _trained(before: TensorColumns, after: TensorColumns) -> list[str]:
    return [
        name
        for name, records in before.items()
        if records[0].requires_grad and name in after and records[0].numel
    ]


def _gap(assembler: Assembler, a: Sequence[TensorRecord], b: Sequence[TensorRecord]) -> float:
    x, y = _full(assembler, a), _full(assembler, b)
    if x.shape != y.shape:
        return math.inf
    return _size(x - y)


def _full(assembler: Assembler, records: Sequence[TensorRecord]) -> torch.Tensor:
    try:
        return as_doubles(assembler.full(records))
    except CannotAssemble:
        return torch.full((), math.nan, dtype=torch.float64)


def _size(tensor: torch.Tensor) -> float:
    """The root mean square; infinite where there is something that is no number."""
    value = float(tensor.square().mean().sqrt())
    return math.inf if math.isnan(value) else value


def same_predictions(
    expected: RunEvidence, observed: RunEvidence, *, origin: str
) -> Iterator[Finding]:
    """Find a prediction right after a load that rounding does not explain.

    The budget is what the same small change of all weights does to the saving mesh's prediction.
    """
    wanted, shaken, seen = (
        as_doubles(run.assembler.full([run.fact(name)[0]]))
        for run, name in (
            (expected, "onward prediction"),
            (expected, "shaken prediction"),
            (observed, "prediction"),
        )
    )
    label = f"{observed.name} from {origin}: after the load"
    if wanted.shape != seen.shape:
        yield Violation("prediction", f"shape {tuple(wanted.shape)}", f"{tuple(seen.shape)}", label)
        return
    allowed = SAFETY * _size(shaken - wanted)
    gap = _size(seen - wanted)
    if not gap <= allowed:
        yield Violation(
            "prediction",
            "the saving mesh's, up to rounding",
            "another one",
            label,
            difference=gap,
            budget=allowed,
        )
    yield Measurement(f"prediction, {label}", gap, allowed)
