"""A lifecycle as a value: what is done to a trainer, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_cplife.mesh import MeshSpec

OPERATIONS = ("train", "save", "load", "restart", "save_sharded", "swap_ema", "crash")
"""What a plan may do, simplest first.

``load`` loads into the live run, ``restart`` ends it, starts another, perhaps on another mesh, and
loads there; ``swap_ema`` enters and leaves :meth:`TrainingRun.ema_weights`; ``crash`` saves while
one rank cannot write.
"""

SAVES = ("save", "save_sharded", "crash")
"""Operations that write to a slot; what ``crash`` was to write is there only if it returned."""

READS = ("load", "restart")
"""Operations that read one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation.

    Attributes:
        operation: one of `OPERATIONS`.
        count: optimizer steps, of ``train``.
        slot: which checkpoint is written or read. A ``restart`` from one that a crash left
            unwritten takes the last one that was written.
        sharded: the checkpoint that is read, or not written, is one of ``save_sharded``.
        mesh: where ``restart`` goes on.
        rank: whose writes fail in a ``crash``, modulo the number of ranks.
    """

    operation: str
    count: int = 1
    slot: int = 0
    sharded: bool = False
    mesh: MeshSpec | None = None
    rank: int = 0

    def __str__(self) -> str:
        if self.operation == "train":
            return f"train({self.count})"
        if self.operation == "crash":
            how = "save_sharded" if self.sharded else "save"
            return f"crash({how} {self.slot}, rank {self.rank})"
        if self.operation in ("save", "save_sharded", "load"):
            return f"{self.operation}({self.slot})"
        if self.operation == "restart":
            return f"restart({self.mesh}, {self.slot})"
        return self.operation


@dataclass(frozen=True, slots=True)
class Plan:
    """A run on `mesh`, and what is done to it."""

    mesh: MeshSpec
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        """``cp2: train(1), save(1), restart(dp1, 1)``."""
        return f"{self.mesh}: {', '.join(map(str, self.steps)) or 'start'}"

    def to_json(self) -> dict[str, Any]:
        return {
            "mesh": self.mesh.option,
            "steps": [
                {
                    "operation": step.operation,
                    "count": step.count,
                    "slot": step.slot,
                    "sharded": step.sharded,
                    "mesh": None if step.mesh is None else step.mesh.option,
                    "rank": step.rank,
                }
                for step in self.steps
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        return cls(
            MeshSpec.parse(data["mesh"]),
            tuple(
                Step(**{**step, "mesh": MeshSpec.parse(step["mesh"]) if step["mesh"] else None})
                for step in data["steps"]
            ),
        )
