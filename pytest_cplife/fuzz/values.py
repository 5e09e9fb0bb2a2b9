"""What the elements of a described tensor are, as bytes in NumPy arrays.

The bytes are made here and compared here; torch only carries them, so that a NaN payload, the
sign of a zero or a subnormal that is lost on the way is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_cplife.evidence.geometry import region
from pytest_cplife.evidence.records import Placement
from pytest_cplife.fuzz.tensors import TensorSpec

Bytes = NDArray[np.uint8]

_FORMATS = {
    "float64": (11, 52),
    "float32": (8, 23),
    "float16": (5, 10),
    "bfloat16": (8, 7),
    "float8_e5m2": (5, 2),
    "float8_e4m3fn": (4, 3),
}
"""Exponent and mantissa bits."""

_PARTS = {"complex64": "float32", "complex128": "float64"}

_SIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}


def itemsize(dtype: str) -> int:
    if dtype in _PARTS:
        return 2 * itemsize(_PARTS[dtype])
    return _SIZES[dtype] if dtype in _SIZES else (1 + sum(_FORMATS[dtype])) // 8


def full_bytes(spec: TensorSpec, mesh_shape: Sequence[int] = ()) -> Bytes:
    """The bytes of the whole tensor, of shape ``(*shape, itemsize)``.

    Of a tensor with Partial placements these are the reduced values.
    """
    if spec.is_partial:
        return _reduced(spec, mesh_shape)
    if spec.layout == "expanded" and spec.shape:
        row = _filled((1, *spec.shape[1:]), spec)
        return np.ascontiguousarray(np.broadcast_to(row, (*spec.shape, row.shape[-1])))
    return _filled(spec.shape, spec)


def local_bytes(
    spec: TensorSpec,
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    whole: Bytes | None = None,
) -> Bytes:
    """The bytes that the rank at `coordinate` holds, by the geometry oracle.

    Args:
        whole: the bytes of the whole tensor, where `spec` says only how it is laid out.
    """
    if whole is None and spec.is_partial:
        number = _partial_number(spec.records, mesh_shape, coordinate)
        whole = _encode(_term(spec, number), spec.dtype)
    elif whole is None:
        whole = full_bytes(spec)
    if not spec.shape:
        return whole
    return whole[np.ix_(*region(spec.shape, spec.records, mesh_shape, coordinate))]


def _filled(shape: tuple[int, ...], spec: TensorSpec) -> Bytes:
    count = math.prod(shape)
    dtype = _PARTS.get(spec.dtype, spec.dtype)
    if dtype != spec.dtype:
        count *= 2
    index = np.arange(count, dtype=np.uint64)
    if spec.values == "count":
        # Another start for another seed: tensors that are alike but for it share no row.
        raw = _counting(index + np.uint64(1 + 17 * spec.seed), dtype)
    elif spec.values == "special":
        patterns = np.array(_patterns(dtype), dtype=np.uint64)
        raw = _low_bytes(patterns[(index + np.uint64(spec.seed)) % len(patterns)], itemsize(dtype))
    else:
        bits = _scrambled(index + np.uint64(spec.seed << 32))
        raw = _low_bytes(bits & np.uint64(1) if dtype == "bool" else bits, itemsize(dtype))
    return raw.reshape(*shape, itemsize(spec.dtype))


def _counting(index: NDArray[np.uint64], dtype: str) -> Bytes:
    if dtype.startswith("float8"):
        # So few values that the bit patterns are counted; the last ones are no numbers.
        return _low_bytes(index % np.uint64(0x70), 1)
    if dtype == "bool":
        return _low_bytes(_scrambled(index) & np.uint64(1), 1)
    if dtype in _SIZES:
        return _low_bytes(index, itemsize(dtype))
    return _encode(index.astype(np.float64), dtype)


def _encode(values: NDArray[np.float64], dtype: str) -> Bytes:
    """Numbers as little-endian bytes of a dtype that can hold them."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values.astype(np.float32)).view(np.uint32) >> np.uint32(16)
        flat = bits.astype(np.uint16)
    else:
        flat = np.ascontiguousarray(values.astype(np.dtype(dtype)))
    return flat.reshape(-1).view(np.uint8).reshape(*values.shape, flat.itemsize)


def _low_bytes(bits: NDArray[np.uint64], size: int) -> Bytes:
    return np.ascontiguousarray(bits.astype("<u8")).view(np.uint8).reshape(-1, 8)[:, :size]


def _scrambled(index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 bits per index that look random, the same ones on every machine (splitmix64)."""
    with np.errstate(over="ignore"):
        z = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _patterns(dtype: str) -> list[int]:
    """Bit patterns at the edges of a dtype."""
    if dtype == "bool":
        return [0, 1, 1]
    bits = 8 * itemsize(dtype)
    sign = 1 << (bits - 1)
    if dtype in _SIZES:
        return [0, 1, 2 * sign - 1, sign, sign - 1]
    exponent, mantissa = _FORMATS[dtype]
    infinity = ((1 << exponent) - 1) << mantissa
    return [
        infinity | ((1 << mantissa) - 1),  # NaN, in float8_e4m3fn as well, which has no other
        sign,  # -0.0
        infinity,
        sign | infinity,
        1,  # the smallest subnormal
        sign | ((1 << mantissa) - 1),  # the largest, negative
        infinity - 1,  # the largest number (float8_e4m3fn has others)
        sign | infinity | 1 | 1 << (mantissa - 1),  # NaN with a sign and a payload
        1 << mantissa,  # the smallest normal number
        0,
    ]


def _partial_number(
    placements: Sequence[Placement], mesh_shape: Sequence[int], coordinate: Sequence[int]
) -> int:
    number = 0
    for placement, size, position in zip(placements, mesh_shape, coordinate, strict=True):
        if placement.kind == "partial":
            number = number * size + position
    return number


def _term(spec: TensorSpec, number: int) -> NDArray[np.float64]:
    """What one rank contributes: small numbers, so that every reduction of them is exact."""
    index = np.arange(spec.numel, dtype=np.float64).reshape(spec.shape)
    return (index + spec.seed) % 5 + 1 + number


def _reduced(spec: TensorSpec, mesh_shape: Sequence[int]) -> Bytes:
    ops = {p.text[2:-1] for p in spec.records if p.kind == "partial"}
    if len(ops) != 1:
        raise ValueError(f"placements {spec.placements} wait for different reductions")
    count = math.prod(
        size for p, size in zip(spec.records, mesh_shape, strict=True) if p.kind == "partial"
    )
    terms = np.stack([_term(spec, number) for number in range(count)])
    reduce: dict[str, Callable[..., Any]] = {
        "sum": np.sum,
        "avg": np.mean,
        "max": np.max,
        "min": np.min,
        "product": np.prod,
    }
    return _encode(np.asarray(reduce[ops.pop()](terms, axis=0)), spec.dtype)
