"""All planted faults."""

from __future__ import annotations

from importlib import import_module

from tests.faults.planting import PLANTED, Fault

_MODULES = (
    "start",
    "training",
    "saving",
    "loading",
    "optimizing",
    "streaming",
    "going",
    "average",
    "refusing",
    "distributed",
    "formats",
)

for _name in _MODULES:
    import_module(f"tests.faults.{_name}")

FAULTS: tuple[Fault, ...] = tuple(PLANTED)
