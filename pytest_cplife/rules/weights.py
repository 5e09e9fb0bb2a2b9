"""What a rank's tensors may take while a trainer saves or loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment
from pytest_cplife.evidence.weighing import Weight
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.shares import itemsize, saved_model

GATHERING = 6
"""Largest tensors that a rank may have in hand while it sends or receives pieces of a whole: padded
pieces, pieces without their padding, the whole, a copy of it for the CPU, and the tensor before,
which is freed when the name it goes by is taken or the garbage is collected."""

READING = 4
"""The same while a rank takes its part out of what it reads: an item of the file, its copy, the
part, and the item before."""

BOOKKEEPING = 1 << 20
"""Bytes of pickled objects, such as the random states of all ranks, that are nobody's model."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a run's state: its largest whole tensor, all whole tensors, each rank's parts."""

    largest: int
    whole: int
    local: tuple[int, ...]


def sizes_of(state: Moment) -> Sizes:
    """The bytes of all that a checkpoint of `state` holds; names of one tensor count once."""
    largest = whole = 0
    local = [0] * len(state.ranks)
    tables: tuple[Mapping[str, Sequence[TensorRecord]], ...] = (
        saved_model(state),
        state.optimizer_tensors,
        state.ema,
    )
    for table in tables:
        seen: set[int] = set()
        for records in table.values():
            if records[0].identity in seen:
                continue
            seen.add(records[0].identity)
            unit = itemsize(records[0].dtype)
            size = records[0].numel * unit
            largest, whole = max(largest, size), whole + size
            for rank, record in enumerate(records):
                local[rank] += record.local_numel * unit
    return Sizes(largest, whole, tuple(local))


def at_most_one_rank(case: Case, what: str, moment: str, *, own_state: bool) -> Iterator[Finding]:
    """Find, where more than one rank holds more than it may during `what`, all those ranks.

    Args:
        moment: when the state was looked at whose sizes are the measure.
        own_state: whether a rank may hold its own part of the state once over.
    """
    found = list(_over(case, what, moment, own_state))
    yield from (finding for finding in found if isinstance(finding, Measurement))
    heavy = [finding for finding in found if isinstance(finding, Violation)]
    if len(heavy) > 1:
        yield from heavy


def every_rank(case: Case, what: str, moment: str) -> Iterator[Finding]:
    """Find the ranks that hold more than their own part once over and the tensors in hand."""
    yield from _over(case, what, moment, own_state=True)


def _over(case: Case, what: str, moment: str, own_state: bool) -> Iterator[Finding]:
    run = case["weighed"]
    state = run.at(moment)
    if len(state.ranks) == 1:
        raise NotCovered("there is one rank")
    sizes = sizes_of(state)
    weights: list[Weight] = run.fact(f"{what}: weight")
    in_hand = (READING if own_state else GATHERING) * sizes.largest
    allowed = [in_hand + own_state * local for local in sizes.local]
    if max(allowed) >= sizes.whole:
        raise NotCovered(
            f"of the state's {sizes.whole} bytes a sound trainer's rank may hold {max(allowed)}, so"
            " that one which holds all of them is not told from it (the largest tensor has"
            f" {sizes.largest} bytes)"
        )
    for rank, (weight, most) in enumerate(zip(weights, allowed, strict=True)):
        # A pickled state that is sent as an object is one of bytes. Where there are too many for
        # random states and names, they count as if they were the state's.
        peak = weight.peak + max(0, weight.whole_numbers - BOOKKEEPING)
        if peak > most:
            yield Violation(
                f"rank {rank}",
                f"at most {most} bytes of tensors",
                f"{peak}, where the whole state has {sizes.whole}",
                f"weighed: {what}",
                ranks=(rank,),
            )
        yield Measurement(f"bytes of tensors on rank {rank} during {what}", peak, most)
