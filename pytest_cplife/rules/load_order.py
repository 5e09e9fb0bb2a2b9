"""LOAD: what a load leaves of a parameter beside its value and its place: class, memory order."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule


@rule(
    "LOAD-20",
    "class and memory order are kept",
    statement="After a load each parameter is of the class that it had before, and its elements lie"
    " in memory in the same order (strides).",
    why="Other strides pick other kernels, which round otherwise or are slow; code that goes by a"
    " parameter's class no longer knows it.",
    cause="Parameters that take over the file's tensors, which an export has transposed, or that"
    " are made again as plain nn.Parameter.",
    level="should",
    runs=("resumed",),
    presumes=("LOAD-03",),
)
def order_kept(case: Case) -> Iterator[Finding]:
    before, after = case["resumed"].at("start"), case["resumed"].at("after load")
    loaded = after.parameters
    for name, records in before.parameters.items():
        pairs = list(zip(records, loaded.get(name, ()), strict=False))
        bad = tuple(rank for rank, (a, b) in enumerate(pairs) if _form(a) != _form(b))
        if bad:
            a, b = pairs[bad[0]]
            yield Violation(name, _show(a), _show(b), after.label, ranks=bad)


def _form(record: TensorRecord) -> tuple[object, ...]:
    return record.type_name, _order(record)


def _order(record: TensorRecord) -> tuple[int, ...]:
    """The strides that tell where elements are: those of dimensions with more than one."""
    if record.numel == 0:
        return ()
    return tuple(
        stride for size, stride in zip(record.shape, record.stride, strict=True) if size > 1
    )


def _show(record: TensorRecord) -> str:
    return f"{record.type_name} of strides {record.stride}"
