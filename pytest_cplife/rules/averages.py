"""The oracle of averaged weights: float64, over full tensors, from the recorded trajectory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from pytest_cplife.adapter import EmaSpec
from pytest_cplife.evidence.assemble import Assembler, CannotAssemble
from pytest_cplife.evidence.compare import as_doubles
from pytest_cplife.evidence.run import Moment, RunEvidence
from pytest_cplife.rules.model import Finding, Measurement, Violation

_ROUNDINGS = 4.0  # a multiply, a subtract, a multiply and an add per update
_SPREAD = 1e-3


def trajectory(run: RunEvidence) -> list[Moment]:
    """The moments of the steps to the one after the save point, from the start, one per step."""
    seen = run.ranks[0].snapshots
    names = ["start", "after first step"]
    names += [name for name in seen if name.startswith("after step ")]
    names += [name for name in seen if name == "after next step"]
    return [run.at(name) for name in names]


def oracle(
    assembler: Assembler, moments: Sequence[Moment], spec: EmaSpec | None
) -> Iterator[Finding]:
    """Compare each moment's averages with the recursion on the live weights.

    Args:
        moments: the start and then one moment per optimizer step.
        spec: the declared rule; None checks one update at a time with the decay that it shows.
    """
    worst, allowed = 0.0, 0.0
    names = [name for name in moments[0].ema if name in moments[0].parameters]
    if not names:
        yield Violation("averages", "averages of parameters", "none", moments[0].label)
    decays = [None] * len(moments) if spec else inferred_decays(assembler, moments, names)
    for name in names:
        shadow = full(assembler, moments[0].ema[name])
        updates = 0
        for index, moment in enumerate(moments[1:], start=1):
            if name not in moment.ema or name not in moment.parameters:
                yield Violation(name, "an average", "missing", moment.label)
                break
            live = full(assembler, moment.parameters[name])
            seen = full(assembler, moment.ema[name])
            if spec is None:
                decay = decays[index]
                start = full(assembler, moments[index - 1].ema[name])
                expected = start if decay is None else decay * start + (1 - decay) * live
            else:
                due = due_at(spec, index)
                updates += due
                shadow = _update(spec, shadow, live, updates) if due else shadow
                expected = shadow
            budget = rounding_budget(expected, live, moment.ema[name][0].dtype, index)
            gap = float((expected - seen).abs().max()) if seen.numel() else 0.0
            worst, allowed = max(worst, gap), max(allowed, budget)
            if not gap <= budget:
                yield Violation(
                    name,
                    "the average of the rule",
                    "another value",
                    moment.label,
                    step=index,
                    difference=gap,
                    budget=budget,
                )
                break
    yield Measurement(f"averages ({len(names)} compared)", worst, allowed)


def _update(spec: EmaSpec, shadow: torch.Tensor, live: torch.Tensor, number: int) -> torch.Tensor:
    decay = decay_of(spec, number)
    return decay * shadow + (1 - decay) * live


def due_at(spec: EmaSpec, step: int) -> bool:
    """Whether an update is made with the optimizer step `step`, counted from 1."""
    return step >= spec.start_step and (step - spec.start_step) % spec.every == 0


def decay_of(spec: EmaSpec, number: int) -> float:
    """The decay of the update `number`, counted from 1; 0 where that one is a copy."""
    if number == 1 and spec.init == "first_update":
        return 0.0
    return spec.decay(number) if callable(spec.decay) else spec.decay


def infer_decay(assembler: Assembler, moments: Sequence[Moment]) -> Iterator[Finding]:
    """Find updates whose decay is not the same over all tensors."""
    names = [name for name in moments[0].ema if name in moments[0].parameters]
    for before, after in pairwise(moments):
        decays = {
            name: decay
            for name in names
            if name in after.ema and (decay := _decay(assembler, before, after, name)) is not None
        }
        if not decays:
            continue
        middle = sorted(decays.values())[len(decays) // 2]
        for name, decay in decays.items():
            if abs(decay - middle) > _SPREAD:
                yield Violation(
                    name, f"decay {middle:.5g} as most", f"decay {decay:.5g}", after.label
                )
        yield Measurement(
            f"spread of the decay, {after.label}",
            max(abs(decay - middle) for decay in decays.values()),
            _SPREAD,
        )


def inferred_decays(
    assembler: Assembler, moments: Sequence[Moment], names: Sequence[str]
) -> list[float | None]:
    """For each moment the median decay that its update shows; None where nothing tells."""
    decays: list[float | None] = [None]
    for before, after in pairwise(moments):
        seen = sorted(
            decay
            for name in names
            if name in after.ema and (decay := _decay(assembler, before, after, name)) is not None
        )
        decays.append(seen[len(seen) // 2] if seen else None)
    return decays


def _decay(assembler: Assembler, before: Moment, after: Moment, name: str) -> float | None:
    """The decay of one update of one tensor, by least squares; None where nothing moved."""
    old, new = full(assembler, before.ema[name]), full(assembler, after.ema[name])
    live = full(assembler, after.parameters[name])
    gap = (old - live).reshape(-1)
    size = float(gap @ gap)
    # Below the rounding of float32 the quotient says nothing.
    if size <= 1e-12 * max(float((live * live).sum()), 1e-30):
        return None
    return float((new - live).reshape(-1) @ gap) / size


def full(assembler: Assembler, records: Sequence[object]) -> torch.Tensor:
    """The full tensor in float64; not a number where the ranks' parts do not make up one."""
    try:
        return as_doubles(assembler.full(records))  # type: ignore[arg-type]
    except CannotAssemble:
        return torch.full((), math.nan, dtype=torch.float64)


def rounding_budget(expected: torch.Tensor, live: torch.Tensor, dtype: str, updates: int) -> float:
    """Rounding of `updates` updates in the shadow's dtype, at the largest magnitude involved."""
    if not expected.numel():
        return 0.0
    kind = getattr(torch, dtype.removeprefix("torch."))
    # A shadow in half precision is not excused: averages need float32 (torch.lerp in bf16 stops).
    step = torch.finfo(torch.float32 if kind.itemsize < 4 else kind).eps
    size = max(float(expected.abs().max()), float(live.abs().max()))
    return _ROUNDINGS * updates * step * size
