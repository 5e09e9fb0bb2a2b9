"""The reference adapter with the golden files as the checkpoints that its user keeps."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_cplife.reference_impl.adapter import Adapter

from pytest_cplife import LegacyCheckpoint

from .make_golden import FOLDER, STEPS


class LegacyAdapter(Adapter):
    """For ``--cplife-adapter=tests.reference.legacy:LegacyAdapter``."""

    def legacy_checkpoints(self) -> Iterable[LegacyCheckpoint]:
        for number in range(3):
            path = FOLDER / f"format-{number}.pt"
            yield LegacyCheckpoint(path, f"format {number}", STEPS)
