"""What travels between the parent and its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_cplife.launchers.base import FailureKind
from pytest_cplife.launchers.samples import Op


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool is, as its ranks need to know it."""

    size: int
    device: str
    backend: str
    folder: str
    master_port: int
    serial: bool = False
    bare: bool = False
    detail: bool = False
    """Run under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, which compares collectives before they run."""

    @property
    def grouped(self) -> bool:
        """Whether the launcher makes the process group."""
        return not (self.serial or self.bare)

    def log(self, rank: int) -> str:
        """The file that takes a rank's stdout and stderr."""
        return f"{self.folder}/rank{rank}.log"


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank has joined its world."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the pickled function and arguments, and what of the parent's state they need."""

    payload: bytes
    sys_path: tuple[str, ...]
    cwd: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Returned:
    """The call returned; `payload` is the pickled result."""

    payload: bytes
    notes: tuple[str, ...]
    ops: tuple[Op, ...]
    """The collectives that the rank entered during the call, as far back as is known."""
    spent: bool
    """The world cannot be used again: the call destroyed its process group."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The call did not return; `moment` is on the machine's monotonic clock."""

    kind: FailureKind
    type_name: str
    message: str
    traceback: str
    moment: float
    signal: int = 0
    """The signal that the rank died of, 0 for none."""
