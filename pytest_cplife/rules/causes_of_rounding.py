"""Patterns of values that went through a dtype of less precision on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment, TensorColumns
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.pattern import Pattern, moment_of, subjects

_FILE = ("SAVE-05", "SAVE-06", "EMA-12")
_LOADS = ("LOAD-02", "OPT-02", "EMA-03", "OPT-12", "DCP-04")
_WAYS = (
    ("late", "late", "late", "late: after load"),
    ("saving", "before save", "resumed", "after load"),
    ("sharding", "before save", "unsharding", "after load"),
)


def _tables(moment: Moment) -> tuple[TensorColumns, ...]:
    return moment.parameters, moment.buffers, moment.optimizer_tensors, moment.ema


def _loaded(case: Case) -> Iterator[tuple[TensorColumns, TensorColumns]]:
    for run, moment, other_run, other_moment in _WAYS:
        if run in case.runs:
            a, b = moment_of(case, run, moment), moment_of(case, other_run, other_moment)
            yield from zip(_tables(a), _tables(b), strict=True)
            return


def _filed(case: Case) -> Iterator[tuple[TensorColumns, TensorColumns]]:
    live, file = moment_of(case, "saving", "before save"), case["files"].file("saved")
    state = {
        f"{name}[{entry}]": record
        for optimizer in file.optimizers
        for name, entries in optimizer.state.items()
        for entry, record in entries.items()
    }
    for table, found in zip(
        _tables(live), (file.model, file.model, state, file.ema or {}), strict=True
    ):
        yield table, {n: [r] for n, r in found.items() if isinstance(r, TensorRecord)}


def _rounded(
    dtype: torch.dtype, ways: Callable[[Case], Iterator[tuple[TensorColumns, TensorColumns]]]
) -> Callable[[Case, Sequence[Violation]], bool]:
    """Whether everything that differs is what it should be, rounded to `dtype`."""

    def fits(case: Case, violations: Sequence[Violation]) -> bool:
        wrong, told = subjects(violations), set()
        assembler = next(iter(case.runs.values())).assembler
        for expected, observed in ways(case):
            for name in wrong & expected.keys() & observed.keys():
                try:
                    a, b = assembler.full(expected[name]), assembler.full(observed[name])
                except CannotAssemble:
                    return False
                if torch.equal(a, b):
                    continue  # The name of a weight is that of its average, too.
                if not a.is_floating_point() or not torch.equal(a.to(dtype).to(b.dtype), b):
                    return False
                told.add(name)
        return bool(wrong) and told == wrong

    return fits


ROUNDING = tuple(
    Pattern(
        rules,
        f"all that differs is what it should be, rounded to {str(dtype).removeprefix('torch.')}: a"
        f" cast {where}",
        _rounded(dtype, ways),
    )
    for dtype in (torch.bfloat16, torch.float16)
    for rules, ways, where in (
        (_FILE, _filed, "on the way to the file"),
        (_LOADS, _loaded, "on the way to the file or out of it"),
    )
)
"""The narrowest pattern comes first."""
