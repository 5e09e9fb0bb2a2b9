"""All planted faults."""

from __future__ import annotations

from importlib import import_module

from pytest_cplife.selftest.planting import PLANTED, Fault

_MODULES = (
    "start",
    "naming",
    "training",
    "saving",
    "observing",
    "loading",
    "counting",
    "optimizing",
    "scheduling",
    "streaming",
    "going",
    "rounding",
    "epochs",
    "meeting",
    "besides",
    "average",
    "refusing",
    "distributed",
    "sharded_again",
    "trusting",
    "reported",
    "background",
    "heavy",
    "layouts",
    "formats",
    "edited",
    "golden",
    "parity",
    "crossing",
    "saving_late",
    "averaging",
    "crashing",
    "crashing_sharded",
    "midwrite",
    "spoiling",
    "advancing",
    "moving",
    "moving_over",
    "geometry",
    "late",
    "telling",
    "several",
    "lives",
    "flattened",
)

for _name in _MODULES:
    import_module(f"pytest_cplife.selftest.faults.{_name}")

FAULTS: tuple[Fault, ...] = tuple(fault for fault in PLANTED if fault.rule)
UNSEEN: tuple[Fault, ...] = tuple(fault for fault in PLANTED if not fault.rule)
