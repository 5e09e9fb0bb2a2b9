"""Manifests made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_cplife.evidence.golden import Manifest

MANIFEST = Manifest(
    name="",
    recorded="2026-01-02T03:04:05+00:00",
    adapter="mymod:Adapter",
    framework="torch",
    checkpoint_format="torch.save",
    mesh="dp=1",
    versions={"pytest-cplife": "0.1.0", "torch": "2.0"},
    content="",
    counters={"global_step": 3, "epoch": 0},
    digests={"weights": {"w": "00ff"}},
    structure={"entry model": "mapping"},
)


def manifest(**changes: Any) -> Manifest:
    return replace(MANIFEST, **changes)
