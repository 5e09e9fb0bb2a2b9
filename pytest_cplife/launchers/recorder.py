"""The collectives that a rank has entered, as torch's flight recorder tells them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cplife.launchers import torch_private

# Where ranks pass tensors of different sizes by design, sizes say nothing.
_UNEVEN = re.compile(r"all_?to_?all|:gather|:scatter|sparse")
# How long the recorder's cheap account is asked before the full one is.
_MOMENT = 0.005
Records = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Op:
    """One collective that a rank has entered."""

    group: str
    number: int
    name: str
    tensors: str
    content: tuple[tuple[str, int], ...]
    """Type and number of elements of every tensor; views of another shape are the same to gloo."""
    pending: bool

    @property
    def likeness(self) -> tuple[Any, ...]:
        """What must agree over the ranks of the group."""
        comparable = self.name.startswith("gloo:") and not _UNEVEN.search(self.name)
        return self.name, self.content if comparable else ()

    def __str__(self) -> str:
        return f"{self.name} #{self.number} {self.tensors}".rstrip()


class Recorder:
    """The flight recorder of one rank, from the rank's birth on.

    The recorder is one per process, and a fork inherits what its parent's has seen: the operations
    of rank threads, say, some of which were under way and will never end in the child. Entries are
    told from those by the number that counts them all; groups may well have the same names.
    """

    def __init__(self) -> None:
        self._entered = _entered()
        self._foreign = set(self._entered)
        self._born = self._mark = self._last = _last_ids(torch_private.flight_records())

    def ops(self) -> tuple[Op, ...]:
        """The collectives of the rank's life, oldest first, as far back as the recorder reaches."""
        return _ops(torch_private.flight_records(), self._born)

    def counts(self) -> tuple[Any, ...]:
        """Equal twice only if no collective was entered or completed in between; cheap."""
        return tuple(sorted(torch_private.recorder_status().items()))

    def mark(self) -> None:
        """Note where the recorder stands now."""
        entered = _entered()
        if entered != self._entered:  # since it was read last, which is no cheap thing to do
            self._entered, self._last = entered, _last_ids(torch_private.flight_records())
        self._mark = self._last

    def since_mark(self, patience: float) -> tuple[Op, ...]:
        """The collectives entered since the last `mark`.

        Args:
            patience: seconds to wait for those that are under way. Even one that was waited for is
                recorded as completed only a moment later.
        """
        if _entered() == self._entered:
            return ()
        start, pause = time.monotonic(), 0.0002
        while self._under_way() and time.monotonic() < start + min(patience, _MOMENT):
            time.sleep(pause)
        while True:
            self._entered = _entered()
            records = torch_private.flight_records()
            self._last = _last_ids(records)
            ops = _ops(records, self._mark)
            if time.monotonic() > start + patience or not any(op.pending for op in ops):
                return ops
            time.sleep(pause)
            pause = min(2 * pause, 0.01)

    def _under_way(self) -> bool:
        return any(
            entered > completed
            for group, (entered, completed) in torch_private.recorder_status().items()
            if group not in self._foreign
        )


def _entered() -> dict[tuple[str, str], int]:
    return {group: entered for group, (entered, _) in torch_private.recorder_status().items()}


def _last_ids(records: Records) -> dict[str, int]:
    """The number of the last entry, by recorder."""
    return {name: max((e["record_id"] for e in own), default=-1) for name, own in records.items()}


def _ops(records: Records, after: Mapping[str, int]) -> tuple[Op, ...]:
    """The collectives recorded later than `after`, without messages between two ranks, which are
    not the same on both sides by design."""
    return tuple(
        _op(entry)
        for name, entries in records.items()
        for entry in entries
        if entry["record_id"] > after[name] and not entry["is_p2p"]
    )


def _op(entry: Mapping[str, Any]) -> Op:
    kinds, sizes = entry["input_dtypes"], entry["input_sizes"]
    shown = [f"{k.lower()}{list(s)}" for k, s in zip(kinds, sizes, strict=False)]
    return Op(
        group=str(entry["process_group"][0]),
        number=int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]),
        tensors=", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else ""),
        content=tuple((k, math.prod(map(int, s))) for k, s in zip(kinds, sizes, strict=False)),
        # NCCL's are completed, by the device's own account, before a thread retires them.
        pending=not entry["retired"] and entry["state"] != "completed",
    )
