"""The lifecycle of a sharded model done right: what a team copies into its own trainer.

Read in this order: model, topology, wrap, placeholder, gradients, plain, checkpoint,
optimizer_state, rng, trainer. Only `adapter` knows the conformance suite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter import Adapter

__all__ = ["Adapter"]


def __getattr__(name: str) -> Any:
    # Lazy, so that importing a part does not import the whole, and naming the package no torch.
    if name == "Adapter":
        from .adapter import Adapter

        return Adapter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
