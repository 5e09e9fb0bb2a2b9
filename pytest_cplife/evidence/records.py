"""What one rank saw of one tensor or value, as plain data that outlives the process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal, TypeVar

C = TypeVar("C", bound=type)


def quickly_pickled(cls: C) -> C:
    """Let a frozen dataclass be pickled as its fields and made again from them.

    Ranks write tens of thousands of records. What the standard library does for frozen
    dataclasses with slots asks for their fields again at every object, and took longer than
    the rest of the pickling.
    """
    values: Callable[[Any], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(cls)))

    def reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
        return cls, values(self)

    setattr(cls, "__reduce__", reduce)  # noqa: B010 - a type has it for its own pickling
    return cls


Kind = Literal["plain", "dtensor", "other"]
PlacementKind = Literal["replicate", "shard", "strided", "partial", "unknown"]


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Placement:
    """How a tensor lies along one mesh dimension.

    `strided` is FSDP2 over tensor parallelism: as if the mesh dimensions to its right had
    been sharded first, into `split_factor` pieces in all.
    """

    kind: PlacementKind
    dim: int = 0
    split_factor: int = 1
    text: str = ""

    def __str__(self) -> str:
        if self.kind == "replicate":
            return "R"
        if self.kind == "shard":
            return f"S({self.dim})"
        if self.kind == "strided":
            return f"S({self.dim},sf={self.split_factor})"
        return self.text


@quickly_pickled
@dataclass(frozen=True, slots=True)
class MeshView:
    """A device mesh as one rank sees it.

    `ranks` is row-major over `shape`; `coordinate` is None where the rank is outside.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    device_type: str
    coordinate: tuple[int, ...] | None


@quickly_pickled
@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor on one rank.

    `shape` and `stride` are global for a DTensor. `digest` names the bytes of the local
    part in the store; None where there are none to read (a meta tensor). `alias` is equal
    for tensors that share storage, `identity` for the very same object; both are good
    within one process only. `storage_bytes` is the size of the storage behind the local part.
    `local_dtype` is the dtype of a DTensor's local part where that is not `dtype`, as a cast of
    its ``.data`` leaves it.
    """

    kind: Kind
    type_name: str
    device: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    local_shape: tuple[int, ...]
    requires_grad: bool
    mesh: MeshView | None
    placements: tuple[Placement, ...]
    digest: str | None
    storage_bytes: int
    alias: int
    identity: int
    local_dtype: str = ""

    @property
    def stored_dtype(self) -> str:
        """The dtype of the bytes that `digest` names."""
        return self.local_dtype or self.dtype

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def local_numel(self) -> int:
        count = 1
        for size in self.local_shape:
            count *= size
        return count

    def layout(self) -> str:
        """Kind, mesh and placements as a reader wants them: ``DTensor fsdp2-tp2 [S(0), R]``."""
        if self.kind != "dtensor" or self.mesh is None:
            return self.type_name
        mesh = "-".join(f"{n}{s}" for n, s in zip(self.mesh.names, self.mesh.shape, strict=True))
        return f"{self.type_name} {mesh} [{', '.join(map(str, self.placements))}]"


@quickly_pickled
@dataclass(frozen=True, slots=True)
class ValueRecord:
    """A value that is no tensor: its type, and a text by which two of them are compared."""

    type_name: str
    text: str


Record = TensorRecord | ValueRecord


KEPT, DROPPED, UNTOLD = range(3)
"""What a dropout module did to an element."""


@quickly_pickled
@dataclass(frozen=True, slots=True)
class NoiseRecord:
    """One call of a dropout module on one rank.

    `given` and `mask` are digests of its input and of which elements it dropped; `dropped` is how
    many they are. `shape` is that of the rank's own part. `first` tells of each of its first
    elements, in the order in which they are drawn, what became of it: `KEPT`, `DROPPED`, or
    `UNTOLD`, where the input was zero already.
    """

    module: str
    shape: tuple[int, ...]
    given: str
    mask: str
    dropped: int
    first: bytes = b""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@quickly_pickled
@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One param group of one optimizer: the parameters it holds and every other key.

    `names` are FQNs in the group's order; for a tensor that is no live parameter of the model see
    `stranger`.
    """

    optimizer: int
    index: int
    names: tuple[str, ...]
    values: dict[str, Record]


def stranger(shape: Sequence[int]) -> str:
    """The name of an optimizer's tensor that is no live parameter of the model."""
    return f"?{tuple(shape)}"


def stranger_shape(name: str) -> str:
    """The shape as text, where `name` is one that `stranger` gives; else ""."""
    return name.removeprefix("?") if name.startswith("?") else ""
