"""How far two tensors are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_CHUNK = 1 << 22
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance between two tensors.

    Attributes:
        max_abs: the largest absolute difference; infinite where one is not a number, or not
            finite, and the other is.
        count: how many elements differ in bits.
        numel: how many there are.
    """

    max_abs: float
    count: int
    numel: int


def difference(expected: torch.Tensor, observed: torch.Tensor) -> Difference:
    """Compare two plain tensors of one shape and dtype in float64 (complex128), chunk by chunk.

    Equal infinities and two NaNs are 0 apart, as are +0.0 and -0.0; what differs in bits is
    counted all the same.

    Raises:
        ValueError: the shapes or dtypes differ.
    """
    for what in ("shape", "dtype"):
        one, other = getattr(expected, what), getattr(observed, what)
        if one != other:
            raise ValueError(f"{what}s {_show(one)} and {_show(other)} differ")
    largest, count = 0.0, 0
    left, right = expected.reshape(-1), observed.reshape(-1)
    for start in range(0, left.numel(), _CHUNK):
        a, b = left[start : start + _CHUNK], right[start : start + _CHUNK]
        differing = (_bits(a) != _bits(b)).any(dim=1)
        largest = max(largest, float(_gaps(a, b).max()))
        count += int(differing.sum())
    return Difference(largest, count, left.numel())


def as_doubles(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's numbers in float64; of complex ones both parts, side by side."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).to(torch.float64)


def _gaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x, y = _wide(a), _wide(b)
    gaps = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs())
    if a.dtype in (torch.int64, torch.uint64):
        # Beyond 2**53 neighbours fall together in float64; wrapped subtraction tells them apart.
        exact = (a.view(torch.int64) - b.view(torch.int64)).abs().to(torch.float64)
        gaps = torch.where(gaps < _EXACT, exact, gaps)
    return torch.where(gaps.isnan(), math.inf, gaps)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.view(torch.uint8).reshape(len(tensor), -1)


def _show(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)
