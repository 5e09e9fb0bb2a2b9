"""Mesh specifications: which topology a run uses, as a value that needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_DIM = re.compile(r"(?P<name>[A-Za-z_][A-Za-z_]*)\s*=?\s*(?P<size>\d+)")
_ACCEPTED = "'name=size' pairs joined by commas, such as 'dp=2,cp=2' (or the id form 'dp2-cp2')"


@dataclass(frozen=True, slots=True)
class MeshSpec:
    """An ordered set of named mesh dimensions, such as ``dp=2,cp=2``.

    The first dimension varies slowest over the ranks, as in
    :func:`torch.distributed.device_mesh.init_device_mesh`. Two specs are equal
    when names, sizes and order are.
    """

    dims: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not self.dims:
            raise ValueError(f"a mesh needs at least one dimension; accepted are {_ACCEPTED}")
        names = [name for name, _ in self.dims]
        if len(set(names)) != len(names):
            raise ValueError(f"mesh {self.dims!r} names a dimension twice")
        for name, size in self.dims:
            if size < 1:
                raise ValueError(f"mesh dimension {name!r} has size {size}; sizes are at least 1")

    @classmethod
    def parse(cls, text: str | MeshSpec) -> MeshSpec:
        """Read ``"dp=2,cp=2"`` or the id form ``"dp2-cp2"``; a spec is returned as it is.

        Raises:
            ValueError: the text is neither; the message quotes it and what is accepted.
        """
        if isinstance(text, MeshSpec):
            return text
        if not isinstance(text, str):
            raise ValueError(f"mesh {text!r} is a {type(text).__name__}; accepted are {_ACCEPTED}")
        dims: list[tuple[str, int]] = []
        for part in re.split(r"[,-]", text):
            match = _DIM.fullmatch(part.strip())
            if match is None:
                raise ValueError(f"mesh {text!r}: cannot read {part!r}; accepted are {_ACCEPTED}")
            dims.append((match["name"], int(match["size"])))
        return cls(tuple(dims))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.dims)

    @property
    def world_size(self) -> int:
        return math.prod(self.shape)

    @property
    def option(self) -> str:
        """The form the command line takes: ``dp=2,cp=2``."""
        return ",".join(f"{name}={size}" for name, size in self.dims)

    def __str__(self) -> str:
        """The form that test ids and reports show: ``dp2-cp2``."""
        return "-".join(f"{name}{size}" for name, size in self.dims)


def parse_meshes(specs: Iterable[str | MeshSpec]) -> tuple[MeshSpec, ...]:
    """Parse several specs, dropping repetitions and keeping the order."""
    return tuple(dict.fromkeys(MeshSpec.parse(spec) for spec in specs))
