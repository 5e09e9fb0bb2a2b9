"""Comparisons that many rules make: structure before values, and what was measured is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pytest_cplife.evidence.assemble import Assembler, CannotAssemble, replica_sets
from pytest_cplife.evidence.compare import Difference, difference
from pytest_cplife.evidence.records import Record, TensorRecord, ValueRecord
from pytest_cplife.evidence.run import TensorColumns
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Measurement, Violation

Table = Mapping[str, Sequence[Record]]


def compare(
    case: Case,
    assembler: Assembler,
    what: str,
    expected: Table,
    observed: Table,
    *,
    moment: str,
    noisy_at: str = "",
) -> Iterator[Finding]:
    """Find where `observed` is not `expected`, tensor by tensor over all ranks.

    Key sets come first, then kinds of value, shapes and dtypes, then bytes of the full tensors.
    On one topology each rank's own bytes must agree as well.

    Args:
        what: a name for the measurement, such as ``"weights"``.
        moment: where `observed` was seen, for messages.
        noisy_at: the moment of the uninterrupted run whose measured noise is the budget; without
            one the comparison is bitwise.
    """
    yield from same_keys(expected, observed, moment=moment)
    worst, allowed = 0.0, 0.0
    for subject in expected:
        if subject not in observed:
            continue
        budget = case.noise.budget(noisy_at, subject) if noisy_at else 0.0
        violation, gap = _compare_one(
            assembler, subject, expected[subject], observed[subject], budget, moment
        )
        worst, allowed = max(worst, gap), max(allowed, budget)
        if violation is not None:
            yield violation
    yield Measurement(f"{what}, {moment} ({len(expected)} compared)", worst, allowed)


def same_keys(expected: Table, observed: Table, *, moment: str) -> Iterator[Violation]:
    """Find what is in one table and not in the other."""
    for subject in expected:
        if subject not in observed:
            yield Violation(subject, "present", "missing", moment)
    for subject in observed:
        if subject not in expected:
            yield Violation(subject, "absent", "present", moment, note="it was not there before")


def _compare_one(
    assembler: Assembler,
    subject: str,
    expected: Sequence[Record],
    observed: Sequence[Record],
    budget: float,
    moment: str,
) -> tuple[Violation | None, float]:
    a, b = expected[0], observed[0]
    if isinstance(a, ValueRecord) or isinstance(b, ValueRecord):
        return _compare_values(subject, expected, observed, moment)
    for name in ("dtype", "shape"):
        if getattr(a, name) != getattr(b, name):
            text = f"{name} {getattr(a, name)}", f"{name} {getattr(b, name)}"
            return Violation(subject, *text, moment), math.inf
    left = [r for r in expected if isinstance(r, TensorRecord)]
    right = [r for r in observed if isinstance(r, TensorRecord)]
    per_rank = _rank_differences(left, right)
    try:
        same = assembler.digest(left) == assembler.digest(right)
        gap = Difference(0.0, 0, a.numel)
        if not same:
            gap = difference(assembler.full(left), assembler.full(right))
    except CannotAssemble as problem:
        return Violation(subject, "one tensor", str(problem), moment), math.inf
    # A digest that differs where no value does is a matter of bits (-0.0, NaN payloads).
    if same or (gap.max_abs <= budget and budget > 0):
        # The full tensor is made of the first replicas; the others have to be near as well.
        astray = [
            rank
            for rank in per_rank
            if not budget or _local_gap(assembler, left[rank], right[rank]) > budget
        ]
        if not astray:
            return None, gap.max_abs
        return (
            Violation(
                subject,
                "each rank's own bytes",
                "equal on the first replica, not on every rank",
                moment,
                ranks=tuple(astray),
            ),
            gap.max_abs,
        )
    return (
        Violation(
            subject,
            "equal bit for bit" if not budget else f"within {budget:.3g}",
            f"{gap.count} of {gap.numel} elements differ",
            moment,
            ranks=tuple(per_rank),
            difference=gap.max_abs,
            budget=budget,
        ),
        gap.max_abs,
    )


def _local_gap(assembler: Assembler, left: TensorRecord, right: TensorRecord) -> float:
    """How far what one rank holds is from what it held; infinite where there are no values."""
    if left.digest is None or right.digest is None:
        return math.inf
    parts = [
        assembler.store.get(record.digest or "", record.stored_dtype, record.local_shape)
        for record in (left, right)
    ]
    return difference(*parts).max_abs


def _compare_values(
    subject: str, expected: Sequence[Record], observed: Sequence[Record], moment: str
) -> tuple[Violation | None, float]:
    # Between topologies there are other numbers of ranks, but a value is the same on all.
    pairs = (
        list(zip(expected, observed, strict=True))
        if len(expected) == len(observed)
        else [(expected[0], other) for other in observed]
    )
    bad = [rank for rank, (a, b) in enumerate(pairs) if a != b]
    if not bad:
        return None, 0.0
    a, b = pairs[bad[0]]
    return Violation(subject, show(a), show(b), moment, ranks=tuple(bad)), math.inf


def _rank_differences(left: Sequence[TensorRecord], right: Sequence[TensorRecord]) -> list[int]:
    """Ranks whose local bytes differ, where both sides lie alike; empty between topologies."""
    if len(left) != len(right):
        return []
    alike = all(
        a.kind == b.kind and a.placements == b.placements and a.local_shape == b.local_shape
        for a, b in zip(left, right, strict=True)
    )
    if not alike:
        return []
    return [i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a.digest != b.digest]


def replicas_agree(columns: TensorColumns, *, moment: str) -> Iterator[Violation]:
    """Find tensors of which ranks that ought to hold the same bytes hold others."""
    for subject, records in columns.items():
        for ranks in replica_sets(records):
            digests = {records[rank].digest for rank in ranks}
            if len(digests) > 1:
                first = records[ranks[0]].digest
                odd = tuple(rank for rank in ranks if records[rank].digest != first)
                yield Violation(
                    subject,
                    f"the same bytes on ranks {', '.join(map(str, ranks))}",
                    f"{len(digests)} different contents",
                    moment,
                    ranks=odd,
                )


def layouts(columns: TensorColumns) -> dict[str, list[tuple[object, ...]]]:
    """Kind, mesh, placements and stride of each tensor on each rank."""
    return {name: [_layout(record) for record in records] for name, records in columns.items()}


def _layout(record: TensorRecord) -> tuple[object, ...]:
    return (record.kind, record.mesh, record.placements, record.shape, record.device)


def same_layout(
    expected: TensorColumns, observed: TensorColumns, *, moment: str
) -> Iterator[Violation]:
    """Find tensors that are no longer of the kind, mesh, placements and device they were."""
    for subject in expected:
        if subject not in observed:
            continue
        pairs = list(zip(expected[subject], observed[subject], strict=True))
        bad = tuple(rank for rank, (a, b) in enumerate(pairs) if _layout(a) != _layout(b))
        if bad:
            a, b = pairs[bad[0]]
            yield Violation(subject, _place(a), _place(b), moment, ranks=bad)


def _place(record: TensorRecord) -> str:
    return f"{record.layout()} {record.shape} on {record.device}"


def show(record: Record) -> str:
    if isinstance(record, ValueRecord):
        return f"{record.text} ({record.type_name})"
    return f"{record.layout()} {record.shape} {record.dtype}"


def those(ranks: Sequence[int]) -> str:
    """As in a sentence: ``rank 1``, ``ranks 0, 2``."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
