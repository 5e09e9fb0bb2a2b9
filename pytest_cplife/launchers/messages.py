"""What travels between the parent and its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_cplife.launchers.base import FailureKind
from pytest_cplife.launchers.recorder import Op


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs, in torchrun's words: its number on its node, the ranks there, the node."""

    local_rank: int
    local_size: int
    node: int


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
    master_addr: str = "127.0.0.1"
    store_port: int = 0
    """Where rank 0 serves the group's store; 0 for a store in `folder`, which needs one machine."""
    places: tuple[Place, ...] = ()
    """Where every rank runs; empty: all on one machine."""

    @property
    def grouped(self) -> bool:
        """Whether the launcher makes the process group."""
        return not (self.serial or self.bare)

    def place(self, rank: int) -> Place:
        return self.places[rank] if self.places else Place(rank, self.size, 0)

    def log(self, rank: int) -> str:
        """The file that takes a rank's stdout and stderr."""
        return f"{self.folder}/rank{rank}.log"


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank has joined its world."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the pickled function and arguments, and what of the parent's state they need.

    ``environment`` is the parent's, or where ranks live on other machines too (``changes_only``)
    what is to differ from theirs; None stands for a variable that is to be absent.
    """

    payload: bytes
    sys_path: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str | None]
    changes_only: bool = False


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
