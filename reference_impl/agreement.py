"""One rank's failure is every rank's failure.

A rank that raises alone leaves the others waiting in the next collective, or, worse, going
on with a state that it does not share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

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
    _settle(doing, gather(_message(error), group), error)


def each(doing: str, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's result of `work`, in rank order; else raises as `agreed` does.

    One exchange for what a block under `agreed` and a `gather` after it need two for: between
    ranks that share a machine's cores an exchange costs about a millisecond.
    """
    value, error = _tried(work)
    found = gather((_message(error), value), group)
    _settle(doing, [message for message, _ in found], error)
    return [cast(T, value) for _, value in found]


def first(doing: str, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Rank 0's result of `work`, which no other rank runs; else raises as `agreed` does."""
    value, error = _tried(work) if global_rank() == 0 else (None, None)
    shared = [(_message(error), value)]
    if world_size() > 1:
        dist.broadcast_object_list(shared, src=0, group=group)
    message, value = shared[0]
    _settle(doing, [message] + [None] * (world_size() - 1), error)
    return cast(T, value)


def _tried(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _message(error: Exception | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def _settle(doing: str, found: Sequence[str | None], mine: Exception | None) -> None:
    failed = [rank for rank, message in enumerate(found) if message is not None]
    if failed:
        where = f"rank {failed[0]}" if len(found) > 1 else "this process"
        others = f" (as did ranks {failed[1:]})" if failed[1:] else ""
        raise CheckpointError(f"{doing}: {where} failed{others}: {found[failed[0]]}") from mine
