"""How far two tensors are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance between two tensors of one shape.

    Attributes:
        max_abs: the largest absolute difference; infinite where one is not a number, or not
            finite, and the other is.
        count: how many elements differ in value or bits.
        numel: how many there are.
    """

    max_abs: float
    count: int
    numel: int


def difference(expected: torch.Tensor, observed: torch.Tensor) -> Difference:
    """Compare two plain tensors of one shape in float64 (complex128), a chunk at a time.

    Equal infinities and two NaNs are equal; +0.0 and -0.0 differ by 0 but are counted.

    Raises:
        ValueError: the shapes differ.
    """
    if expected.shape != observed.shape:
        raise ValueError(f"shapes {tuple(expected.shape)} and {tuple(observed.shape)} differ")
    largest, count = 0.0, 0
    left, right = expected.reshape(-1), observed.reshape(-1)
    for start in range(0, left.numel(), _CHUNK):
        a, b = _wide(left[start : start + _CHUNK]), _wide(right[start : start + _CHUNK])
        gap = (a - b).abs()
        same = (a == b) | (a.isnan() & b.isnan())
        gap = torch.where(same, torch.zeros_like(gap), gap).nan_to_num(nan=math.inf)
        largest = max(largest, float(gap.max()))
        signs = (a == 0) & (b == 0) & (torch.signbit(a.real) != torch.signbit(b.real))
        count += int((~same | signs).sum())
    return Difference(largest, count, left.numel())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
