"""What becomes of buffers in an average: averaged, copied or left alone, along the trajectory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch

from pytest_cplife.adapter import EmaSpec
from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment
from pytest_cplife.rules.averages import decay_of, due_at, full, inferred_decays, rounding_budget
from pytest_cplife.rules.case import NotCovered
from pytest_cplife.rules.model import Finding, Measurement, Violation

_KINDS = {"float": ("average", "copy", "ignore"), "integer": ("copy", "ignore")}
"""By kind of buffer what can be made of it; a mean of integers is none."""
_DONE = {"average": "averaged", "copy": "copied", "ignore": "left as it was"}


def buffer_oracle(
    assembler: Assembler, moments: Sequence[Moment], spec: EmaSpec | None
) -> Iterator[Finding]:
    """Compare each averaged buffer with what its rule makes of the live one.

    Args:
        moments: the start and then one moment per optimizer step.
        spec: the declared rule; without one any rule will do that all buffers of a kind follow.

    Raises:
        NotCovered: no buffer is averaged, and none is declared to be.
    """
    first = moments[0]
    averaged = [name for name in first.ema if name in first.buffers]
    by_kind: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for name in averaged:
        by_kind[_kind(first.buffers[name][0])].append(name)
    if spec is not None:
        yield from _missing(first, spec, averaged)
    if not averaged:
        if spec is None or (spec.float_buffers, spec.integer_buffers) == ("ignore", "ignore"):
            raise NotCovered("no buffer is averaged")
        return
    decays = _decays(assembler, moments, spec)
    for kind, names in by_kind.items():
        choices: tuple[str, ...] = _KINDS[kind]
        if spec is not None:
            choices = (spec.float_buffers if kind == "float" else spec.integer_buffers,)
        tried = {
            choice: [
                violation
                for name in names
                for violation in _follow(assembler, moments, name, choice, decays)
            ]
            for choice in choices
        }
        # Where none is declared, the rule that explains the most is the one that was meant.
        yield from min(tried.values(), key=len)
    yield Measurement(f"averaged buffers ({len(averaged)} compared)", 0.0, 0.0)


def _kind(record: TensorRecord) -> str:
    return (
        "float"
        if getattr(torch, record.dtype.removeprefix("torch.")).is_floating_point
        else ("integer")
    )


def _missing(first: Moment, spec: EmaSpec, averaged: Sequence[str]) -> Iterator[Violation]:
    """Persistent buffers that the rule speaks of and the average does not have."""
    persistent = set(first.ranks[0].persistent)
    for name, records in first.buffers.items():
        policy = spec.float_buffers if _kind(records[0]) == "float" else spec.integer_buffers
        if policy != "ignore" and name in persistent and name not in averaged:
            yield Violation(name, f"in the average, {_DONE[policy]}", "not there", first.label)


def _decays(
    assembler: Assembler, moments: Sequence[Moment], spec: EmaSpec | None
) -> list[float | None]:
    """For each moment the decay of the update that was made since the last one; None for none."""
    if spec is None:
        names = [name for name in moments[0].ema if name in moments[0].parameters]
        # A decay of 1 is an update that was not made.
        return [
            None if decay is None or decay == 1.0 else decay
            for decay in inferred_decays(assembler, moments, names)
        ]
    decays: list[float | None] = [None]
    updates = 0
    for index in range(1, len(moments)):
        due = due_at(spec, index)
        updates += due
        decays.append(decay_of(spec, updates) if due else None)
    return decays


def _follow(
    assembler: Assembler,
    moments: Sequence[Moment],
    name: str,
    choice: str,
    decays: Sequence[float | None],
) -> Iterator[Violation]:
    """The first moment at which the averaged buffer is not what `choice` makes of it."""
    shadow = full(assembler, moments[0].ema[name])
    for index, (before, moment) in enumerate(pairwise(moments), start=1):
        tables: tuple[Mapping[str, Sequence[TensorRecord]], ...] = (moment.ema, moment.buffers)
        if any(name not in table for table in tables):
            yield Violation(name, "an average", "missing", moment.label, step=index)
            return
        seen, live = (full(assembler, table[name]) for table in tables)
        decay = decays[index]
        budget = 0.0
        if decay is not None and choice == "copy":
            shadow = live
        elif decay is not None and choice == "average":
            # From what was there, so that one rounding is judged and not the sum of all.
            shadow = decay * full(assembler, before.ema[name]) + (1 - decay) * live
            budget = rounding_budget(shadow, live, moment.ema[name][0].dtype, 1)
        gap = float((shadow - seen).abs().max()) if seen.numel() else 0.0
        if not gap <= budget:
            yield Violation(
                name,
                f"{_DONE[choice]}, as the rule says",
                "another value",
                moment.label,
                step=index,
                difference=gap,
                budget=budget,
            )
            return
        shadow = seen
