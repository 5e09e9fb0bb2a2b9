"""What a launcher is: the one interface between scenarios and what runs them.

A *world* is a set of live ranks. ``World.run(fn, *args)`` calls ``fn(rank, *args)``
on every rank and returns the results in rank order; a failure on any rank is a
:class:`WorldFailure`, after which the world has been replaced by a fresh one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_cplife.mesh import MeshSpec

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

FailureKind = Literal["raised", "exited", "killed", "hung", "unserialisable"]


class Rank(Protocol):
    """What a launcher hands to the function that it runs on each rank."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def serial(self) -> bool:
        """True in a serial world: one process, no process group, no rank variables."""
        ...

    @property
    def own_process(self) -> bool:
        """True where no other rank shares the process, so that its end is that of one rank."""
        ...

    def mesh(self, spec: MeshSpec) -> DeviceMesh:
        """The mesh of `spec`, built at first use and then kept for the life of the world.

        Raises:
            RuntimeError: the world is serial, or `spec` needs another world size.
        """
        ...


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank ended other than by returning.

    ``secondary`` marks the noise that a first failure causes on the other ranks
    ("connection closed by peer"), which reports fold away. ``output`` is the tail of what the
    rank printed during the call.
    """

    rank: int
    kind: FailureKind
    type_name: str
    message: str
    traceback: str = ""
    secondary: bool = False
    output: str = ""

    def headline(self) -> str:
        return f"rank {self.rank} {self.kind}: {self.type_name}: {self.message}".rstrip(": ")


class WorldFailure(RuntimeError):
    """A call on a world that did not end well on every rank.

    ``failures`` holds every rank that failed, first in time first; the first is the headline.
    """

    def __init__(self, failures: tuple[RankFailure, ...], seconds: float) -> None:
        self.failures = failures
        self.seconds = seconds
        super().__init__(self._text())

    @property
    def primary(self) -> RankFailure:
        return self.failures[0]

    def _text(self) -> str:
        first = self.primary
        lines = [first.headline()]
        if first.traceback:
            lines.append(first.traceback.rstrip())
        if first.output.strip():
            lines.append(f"rank {first.rank} printed:\n{first.output.strip()}")
        lines.extend(f"also {other.headline()}" for other in self.failures[1:])
        return "\n".join(lines)


class RunEnded(KeyboardInterrupt):
    """The launcher cannot go on: what it needs for every further call is gone.

    pytest ends the run at once, as for an interrupt: with a summary, this message and status 2.
    """


class World(ABC):
    """A set of live ranks."""

    size: int
    notes: tuple[str, ...] = ()
    """What the last call left changed in its ranks (an environment variable, the default dtype, a
    process group) and the launcher put right."""

    @abstractmethod
    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """Call ``fn(rank, *args)`` on every rank; results in rank order.

        Args:
            fn: a function that the ranks can find by its module and name.
            args: picklable arguments, the same for every rank.
            timeout: seconds until the call ends as a failure; None takes the launcher's.

        Raises:
            WorldFailure: a rank raised, exited, died or did not finish in time.
        """

    @abstractmethod
    def close(self) -> None:
        """End every rank; a later `run` starts fresh ones."""


class Launcher(ABC):
    """A source of worlds, which it keeps alive between calls."""

    name: str

    @abstractmethod
    def world(self, size: int, lane: str = "main", *, bare: bool = False) -> World:
        """The world of `size` ranks with a live process group.

        Worlds of different lanes never share a process, so that what one lane
        saved is resumed in processes that have never seen it.

        A `bare` world is for trainers that call ``init_process_group`` themselves: rank variables
        with a working ``MASTER_ADDR`` and ``MASTER_PORT``, no group, fresh ranks at every call.
        """

    @abstractmethod
    def serial_world(self, lane: str = "main") -> World:
        """One rank without a process group and without rank variables in its environment."""

    def check_folder(self, folder: Path) -> None:  # noqa: B027
        """Make sure that ranks on every machine see `folder`, in which they are to work together.

        Raises:
            RunEnded: some do not.
        """

    @abstractmethod
    def close(self) -> None:
        """End every world."""
