"""Faults that no rule is there for yet: what the suite has to learn to see.

They are planted without a rule; ``python -m pytest_cplife.selftest unseen`` shows what fails all
the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from torch import Tensor


@plant(fsdp2.Adapter, rule="", subject="embed.weight[step]", mesh="fsdp=2", public=("B155",))
class RoundsLateSteps(fsdp2.Fsdp2Run):
    """Step counts take a way through bfloat16, which is exact up to 256."""

    def restore_optimizers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        super().restore_optimizers(saved)
        for entries in self.optimizers[0].state.values():
            step: Tensor = entries["step"]
            entries["step"] = step.bfloat16().float()
