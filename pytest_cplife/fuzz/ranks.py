"""What the ranks of a fuzzed world share: the adapter, kept, and exceptions, agreed on."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.launchers.base import Rank, WorldFailure
from pytest_cplife.loading import load_adapter
from pytest_cplife.rules.model import Violation

Reports = list[Violation]

_PATIENCE = 1.0


@lru_cache(maxsize=8)
def adapter_of(target: str) -> LifecycleAdapter:
    """The adapter, built once per process."""
    return load_adapter(target)()


def guarded(rank: Rank, folder: Path, body: Callable[[], Reports]) -> Reports:
    """Run `body`; an exception that every rank has becomes a violation.

    A rank that raises while others wait for it has to end the call, and that costs a world; one
    that all ranks agree on costs nothing, and shrinking meets it hundreds of times.
    """
    try:
        return body()
    except Exception as error:
        if not all_raised(rank, folder):
            raise
        return [_raised(error)]


def all_raised(rank: Rank, folder: Path) -> bool:
    """Whether the other ranks have raised as well, within a second; asked where this one has.

    They tell each other through files in `folder`, because the process group may be what is broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"raised{rank.rank}").touch()
    end = time.monotonic() + _PATIENCE
    while any(not (folder / f"raised{r}").exists() for r in range(rank.world_size)):
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def _raised(error: Exception) -> Violation:
    text = str(error).strip().splitlines() or [""]
    return Violation(
        subject="call",
        expected="completes on every rank",
        observed=f"{type(error).__name__}: {text[0][:300]}",
        moment=f"raised {type(error).__name__}",
        detail="".join(traceback.format_exception(error)),
    )


def merged(per_rank: Sequence[Iterable[Violation]]) -> tuple[Violation, ...]:
    """What the ranks report, each violation once, with the ranks that saw it."""
    seen: dict[Violation, list[int]] = {}
    for number, violations in enumerate(per_rank):
        for violation in violations:
            # Tracebacks differ in nothing that matters, and in paths and line numbers that do not.
            key = replace(violation, ranks=(), detail="")
            seen.setdefault(key, []).append(number)
    return tuple(replace(violation, ranks=tuple(ranks)) for violation, ranks in seen.items())


def of_failure(failure: WorldFailure) -> Violation:
    """A call that did not end well on every rank, as a violation."""
    first = failure.primary
    return Violation(
        subject="call",
        expected="completes on every rank",
        observed=first.headline(),
        moment=f"{first.kind} {first.type_name}",
        ranks=tuple(f.rank for f in failure.failures if not f.secondary),
        detail=str(failure),
    )
