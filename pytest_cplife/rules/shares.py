"""Which rank has to write how much of a sharded checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pytest_cplife.evidence.assemble import replica_sets
from pytest_cplife.evidence.layout import ShardLayout
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment, TensorColumns
from pytest_cplife.rules.model import Finding, Measurement, Violation

_SLACK = 1.5
"""A planner that never moves a piece once it is given away misses the best plan by less."""


def saved_model(live: Moment) -> TensorColumns:
    """The parameters and buffers that a ``state_dict()`` of the model holds."""
    tensors = live.parameters | live.buffers
    kept = set(live.ranks[0].persistent)
    return {name: records for name, records in tensors.items() if name in kept}


def unbalanced(layout: ShardLayout, live: Moment) -> Iterator[Finding]:
    """Find ranks that write much more than the busiest one has to."""
    loads = fair_loads(live)
    written = [layout.written_by(rank) for rank in range(len(loads))]
    # What else the trainer saves (or leaves out) is shared as its state is.
    scale = sum(written) / max(sum(loads), 1)
    allowed = _SLACK * max(loads) * scale + layout.largest
    for rank, size in enumerate(written):
        if size > allowed:
            yield Violation(
                f"files of rank {rank}",
                f"at most {allowed:.0f} bytes of tensors",
                f"{size} of {sum(written)} bytes",
                "sharded directory",
                ranks=(rank,),
            )
    yield Measurement("bytes of tensors that the busiest rank wrote", max(written), allowed)


def fair_loads(live: Moment) -> list[int]:
    """Bytes per rank, if each piece is written by the least busy of the ranks that hold it."""
    loads = [0] * len(live.ranks)
    tables = (saved_model(live), live.optimizer_tensors, live.ema)
    pieces = [piece for table in tables for records in table.values() for piece in _pieces(records)]
    for size, ranks in sorted(pieces, key=lambda piece: -piece[0]):
        loads[min(ranks, key=lambda rank: loads[rank])] += size
    return loads


def _pieces(records: Sequence[TensorRecord]) -> Iterator[tuple[int, list[int]]]:
    """Bytes of each distinct piece of a tensor, and the ranks that hold it."""
    for ranks in replica_sets(records):
        record = records[ranks[0]]
        yield record.local_numel * itemsize(record.dtype), ranks


def itemsize(dtype: str) -> int:
    """Bytes of one element of the dtype that goes by this text, such as ``torch.float32``."""
    kind: torch.dtype = getattr(torch, dtype.removeprefix("torch."))
    return kind.itemsize
