"""Explain an abort: run the call once more where collectives are compared before they run.

gloo ends the whole process when a rank is sent more than it expects. The dead rank cannot say what
it was doing, and with two ranks nobody else can. ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` raises first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_cplife.launchers.base import RankFailure, WorldFailure

_NAMED = " entered "


def needs_rerun(failure: WorldFailure) -> bool:
    """Whether a rank aborted and what the others saw does not say why."""
    return _aborted(failure.primary) and _NAMED not in failure.primary.message


def _aborted(failure: RankFailure) -> bool:
    return failure.kind == "killed" and "SIGABRT" in failure.message


def explained(failure: WorldFailure, rerun: Callable[[], Any]) -> WorldFailure:
    """The same failure with what a second run under DETAIL says."""
    try:
        rerun()
    except WorldFailure as second:
        told = next((f for f in second.failures if "mismatch" in f.message), second.primary)
        finding = f"rank {told.rank}: {told.message}"
    else:
        finding = "it passed, so the collectives agree when they are compared"
    primary = replace(
        failure.primary,
        message=f"{failure.primary.message}\n  run again under TORCH_DISTRIBUTED_DEBUG=DETAIL: "
        f"{finding}",
    )
    return WorldFailure((primary, *failure.failures[1:]), failure.seconds)
