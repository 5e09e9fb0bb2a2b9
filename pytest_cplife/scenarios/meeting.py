"""Where the ranks of a scenario meet on the suite's behalf, out of the trainer's way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


class Meeting:
    """Where the ranks wait for each other on a group of the suite's own.

    A rank that fails alone leaves the others in a collective of the trainer's. In a barrier of the
    default group it would be taken for the rank that they wait for.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    def wait(self) -> None:
        if self._group is not None:
            dist.barrier(group=self._group)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, in rank order."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values


@contextmanager
def meeting() -> Iterator[Meeting]:
    """Make the group, and destroy it where the block ends well."""
    group = dist.new_group(backend="gloo") if dist.is_initialized() else None
    yield Meeting(group)
    if group is not None:
        dist.destroy_process_group(group)
