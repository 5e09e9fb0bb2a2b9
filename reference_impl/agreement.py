"""One rank's failure is every rank's failure.

A rank that raises alone leaves the others waiting in the next collective, or, worse, going
on with a state that it does not share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, read or fitted; the message names the file."""


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's `value`, in rank order, on every rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values  # type: ignore[return-value]


def world_size() -> int:
    """Ranks of the process group, 1 in a serial run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def global_rank() -> int:
    """This process's rank, 0 in a serial run."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


@contextmanager
def agreed(doing: str, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Raise on every rank if the block raises on one. The block itself must not communicate.

    Raises:
        CheckpointError: with the first failing rank's message, and which ranks failed.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    mine = None if error is None else f"{type(error).__name__}: {error}"
    found = gather(mine, group)
    failed = [rank for rank, message in enumerate(found) if message is not None]
    if failed:
        where = f"rank {failed[0]}" if len(found) > 1 else "this process"
        others = f" (as did ranks {failed[1:]})" if failed[1:] else ""
        raise CheckpointError(f"{doing}: {where} failed{others}: {found[failed[0]]}") from error
