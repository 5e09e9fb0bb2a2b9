"""One tensor of an example, described: shape, dtype, placements, memory layout and values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cplife.evidence.records import Placement

DTYPES = (
    "float32",
    "bfloat16",
    "float64",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)
"""Names of the dtypes that examples are made of, simplest first."""

SHARDED_LAYOUTS = ("contiguous", "transposed", "offset")
"""How a DTensor's local part may lie in memory."""

PLAIN_LAYOUTS = (*SHARDED_LAYOUTS, "stepped", "expanded")
"""How a plain tensor may lie in memory.

``transposed`` has its dimensions in the opposite order, ``offset`` begins inside a larger
storage, ``stepped`` takes every second element of one, ``expanded`` repeats its first row with
stride 0.
"""

VALUES = ("count", "special", "bits")
"""What a tensor is filled with: 1, 2, 3 and so on; the dtype's edge cases (NaN, Inf, -0.0,
subnormals, extremes) in turn; or any bits at all, drawn from the seed."""

REDUCE_OPS = ("sum", "avg", "max", "min", "product")
"""Reductions that a Partial placement may be waiting for."""

_PLACEMENT = re.compile(r"R|S\((?P<dim>\d+)(,sf=(?P<factor>\d+))?\)|P\((?P<op>[a-z]+)\)")


def parse_placement(text: str) -> Placement:
    """Read ``R``, ``S(0)``, ``S(0,sf=2)`` (strided, as FSDP2 over TP makes it) or ``P(sum)``.

    Raises:
        ValueError: the text is none of these.
    """
    match = _PLACEMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"placement {text!r}; accepted are R, S(0), S(0,sf=2) and P(sum)")
    if match["op"]:
        return Placement("partial", text=text)
    if match["dim"] is None:
        return Placement("replicate", text=text)
    if match["factor"]:
        return Placement("strided", int(match["dim"]), int(match["factor"]), text)
    return Placement("shard", int(match["dim"]), text=text)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that any rank can build without communication, and whose value is known.

    Attributes:
        shape: the global shape.
        dtype: the dtype's name without ``torch.``.
        placements: one text per mesh dimension (see :func:`parse_placement`); None for a plain
            tensor, the same on every rank.
        layout: one of `PLAIN_LAYOUTS`, for a DTensor of `SHARDED_LAYOUTS`.
        values: one of `VALUES`; tensors with a Partial placement have small numbers of their own.
        seed: tells apart the values of tensors that are otherwise alike.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    placements: tuple[str, ...] | None = None
    layout: str = "contiguous"
    values: str = "count"
    seed: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def records(self) -> tuple[Placement, ...]:
        """The placements as evidence has them."""
        return tuple(parse_placement(text) for text in self.placements or ())

    @property
    def is_partial(self) -> bool:
        return any(p.kind == "partial" for p in self.records)

    @property
    def stride(self) -> tuple[int, ...]:
        """The stride of the full tensor in this layout."""
        if self.layout == "transposed":
            return contiguous_stride(self.shape[::-1])[::-1]
        return contiguous_stride(self.shape)

    def __str__(self) -> str:
        """As failures show it: ``float32 (5, 3) [S(0), R] transposed``."""
        place = "plain" if self.placements is None else f"[{', '.join(self.placements)}]"
        extra = [self.layout] if self.layout != "contiguous" else []
        extra += [f"{self.values} {self.seed}"] if (self.values, self.seed) != ("count", 0) else []
        return " ".join([self.dtype, str(self.shape), place, *extra])

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "placements": None if self.placements is None else list(self.placements),
            "layout": self.layout,
            "values": self.values,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSpec:
        places = data["placements"]
        return cls(
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            placements=None if places is None else tuple(places),
            layout=data["layout"],
            values=data["values"],
            seed=data["seed"],
        )


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides; as in torch an empty dimension counts as one of size 1."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
