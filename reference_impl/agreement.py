"""One rank's failure is every rank's failure.

A rank that raises alone leaves the others waiting in the next collective, or, worse, going
on with a state that it does not share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import torch.distributed as dist

S = TypeVar("S")
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


def first(doing: str, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Rank 0's result of `work`, which no other rank runs; else raises as `agreed` does."""
    value, error = _tried(work) if global_rank() == 0 else (None, None)
    shared = [(_message(error), value)]
    if world_size() > 1:
        dist.broadcast_object_list(shared, src=0, group=group)
    message, value = shared[0]
    _settle(doing, [message] + [None] * (world_size() - 1), error)
    return cast(T, value)


def led(
    doing: str,
    mine: Callable[[], T],
    lead: Callable[[Sequence[T]], Sequence[S]],
    group: dist.ProcessGroup | None = None,
) -> S:
    """This rank's part of what rank 0 makes, with `lead`, of every rank's result of `mine`.

    One round trip, and no rank but 0 hears of the others' results: with thousands of ranks they
    are too much to tell everybody.

    Args:
        lead: told the results in rank order, answers in rank order. It must not communicate.

    Raises:
        CheckpointError: on every rank, as `agreed` does, also where `lead` raises.
    """
    value, error = _tried(mine)
    reports = _to_rank_0((_message(error), value), group)
    answers: list[tuple[list[str | None], S | None]] | None = None
    if reports is not None:
        failed = [message for message, _ in reports]
        parts: Sequence[S | None] = [None] * len(reports)
        if not any(failed):
            made, error = _tried(lambda: lead([cast(T, value) for _, value in reports]))
            failed[0] = _message(error)
            parts = parts if made is None else made
        answers = [(failed, part) for part in parts]
    failed, part = _from_rank_0(answers, group)
    _settle(doing, failed, error)
    return cast(S, part)


def _to_rank_0(value: T, group: dist.ProcessGroup | None) -> list[T] | None:
    """Every rank's `value` on rank 0, None elsewhere."""
    if world_size() == 1:
        return [value]
    values: list[T] | None = None
    if global_rank() == 0:
        values = [value] * world_size()
    dist.gather_object(value, values, dst=0, group=group)
    return values


def _from_rank_0(values: Sequence[T] | None, group: dist.ProcessGroup | None) -> T:
    """This rank's one of the `values` that rank 0 has."""
    if world_size() == 1:
        assert values is not None
        return values[0]
    mine: list[T | None] = [None]
    dist.scatter_object_list(mine, None if values is None else list(values), src=0, group=group)
    return cast(T, mine[0])


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
