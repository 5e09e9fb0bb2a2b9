"""pytest-cplife: a conformance suite for the lifecycle of sharded PyTorch models.

The names below are loaded when first used: pytest imports this package in every run
that has it installed, and must not pay for torch there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_cplife.adapter import (
        EmaSpec,
        LegacyCheckpoint,
        LifecycleAdapter,
        RankContext,
        TrainingRun,
    )
    from pytest_cplife.evidence.checkpoint import CheckpointView
    from pytest_cplife.mesh import MeshSpec

__version__ = "0.1.0"

_HOMES = {
    "LifecycleAdapter": "pytest_cplife.adapter",
    "TrainingRun": "pytest_cplife.adapter",
    "RankContext": "pytest_cplife.adapter",
    "EmaSpec": "pytest_cplife.adapter",
    "LegacyCheckpoint": "pytest_cplife.adapter",
    "MeshSpec": "pytest_cplife.mesh",
    "CheckpointView": "pytest_cplife.evidence.checkpoint",
}

__all__ = [
    "CheckpointView",
    "EmaSpec",
    "LegacyCheckpoint",
    "LifecycleAdapter",
    "MeshSpec",
    "RankContext",
    "TrainingRun",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
