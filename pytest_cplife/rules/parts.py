"""The parts of a trainer's state, once: rules name those that they compare between two moments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from pytest_cplife.evidence.records import Record, ValueRecord
from pytest_cplife.evidence.run import Moment, RunEvidence
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import Table, compare
from pytest_cplife.rules.model import Finding


def counters(moment: Moment) -> Table:
    """The run's counters, as values that can be compared."""
    names = moment.ranks[0].counters
    return {
        name: [ValueRecord("int", str(snapshot.counters[name])) for snapshot in moment.ranks]
        for name in names
    }


def carried(moment: Moment) -> Moment:
    """The moment as a plain file can carry it.

    Plain buffers may differ between ranks while training (statistics of local batches); the file
    has room for one value, and rank 0's is what every rank gets back.
    """
    first = moment.ranks[0].buffers
    ranks = (
        replace(
            snapshot,
            buffers={
                name: first.get(name, record) if record.kind == "plain" else record
                for name, record in snapshot.buffers.items()
            },
        )
        for snapshot in moment.ranks
    )
    return replace(moment, ranks=tuple(ranks))


def group_values(moment: Moment) -> Table:
    """Every key of every param group, named ``optimizer 0 group 1: lr``."""
    return _columns(
        moment,
        lambda snapshot: {
            f"optimizer {group.optimizer} group {group.index}: {key}": value
            for group in snapshot.groups
            for key, value in group.values.items()
        },
    )


def scheduler_values(moment: Moment) -> Table:
    """Every entry of every scheduler's state."""
    return _columns(
        moment,
        lambda snapshot: {
            f"scheduler {position}: {key}": value
            for position, scheduler in enumerate(snapshot.schedulers)
            for key, value in scheduler.items()
        },
    )


def _columns(moment: Moment, table: Callable[[Snapshot], Mapping[str, Record]]) -> Table:
    tables = [table(snapshot) for snapshot in moment.ranks]
    return {key: [t[key] for t in tables] for key in tables[0] if all(key in t for t in tables)}


def extra_values(moment: Moment) -> Table:
    """Every entry of what `named_extra_state` tells."""
    return _columns(moment, lambda snapshot: snapshot.extra or {})


PARTS: dict[str, Callable[[Moment], Table]] = {
    "weights": lambda moment: moment.parameters,
    "buffers": lambda moment: moment.buffers,
    "optimizer state": lambda moment: moment.optimizer_state,
    "averages": lambda moment: moment.ema,
    "hyperparameters": group_values,
    "schedulers": scheduler_values,
    "counters": counters,
    "extra state": extra_values,
}
"""By name: what of a moment it is."""

_OWN = tuple(part for part in PARTS if part != "extra state")
"""What a run has by itself; what it tells besides is compared where that is asked for."""


def compare_parts(
    case: Case,
    run: RunEvidence,
    expected: Moment,
    observed: Moment,
    *parts: str,
    moment: str = "",
    noisy_at: str = "",
    without: Collection[str] = (),
) -> Iterator[Finding]:
    """Compare the named parts of two moments, as `compare` does; all but extra state by default.

    Args:
        run: whose tensors they are; runs of one session share them.
        moment: where `observed` was seen, for messages; by default its own label.
        noisy_at: the moment of the uninterrupted run whose measured noise is the budget.
        without: subjects that may be what they like.
    """
    for part in parts or _OWN:
        a, b = (
            {name: records for name, records in PARTS[part](state).items() if name not in without}
            for state in (expected, observed)
        )
        label = moment or observed.label
        yield from compare(case, run.assembler, part, a, b, moment=label, noisy_at=noisy_at)
