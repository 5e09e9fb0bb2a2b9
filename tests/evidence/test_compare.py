"""How far two tensors are apart, at the edges of their number formats."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_cplife.evidence import compare
from pytest_cplife.evidence.compare import Difference, difference

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("expected", "observed", "gap", "count"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, 0),
        ([1.0, 2.0], [1.5, 2.0], 0.5, 1),
        ([1.0, 2.0], [1.5, -2.0], 4.0, 2),
        ([INF, -INF], [INF, -INF], 0.0, 0),
        ([INF], [-INF], INF, 1),
        ([INF], [1.0], INF, 1),
        ([NAN], [NAN], 0.0, 0),
        ([NAN], [1.0], INF, 1),
        ([1.0], [NAN], INF, 1),
        ([NAN], [INF], INF, 1),
        ([0.0], [-0.0], 0.0, 1),
        ([], [], 0.0, 0),
    ],
)
def test_floats(expected: list[float], observed: list[float], gap: float, count: int) -> None:
    a, b = torch.tensor(expected), torch.tensor(observed)
    assert difference(a, b) == Difference(gap, count, len(expected))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float64], ids=str
)
def test_every_width_of_float(dtype: torch.dtype) -> None:
    a, b = torch.tensor([1.0, 2.0]).to(dtype), torch.tensor([1.0, 2.5]).to(dtype)
    assert difference(a, b) == Difference(0.5, 1, 2)


def test_complex_parts() -> None:
    a = torch.tensor([3 + 4j, 1j])
    assert difference(a, torch.tensor([0j, 1j])) == Difference(5.0, 1, 2)
    negative = torch.complex(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert difference(torch.tensor([0j]), negative) == Difference(0.0, 1, 1)


def test_booleans() -> None:
    a = torch.tensor([True, False, True])
    assert difference(a, ~a) == Difference(1.0, 3, 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64], ids=str)
def test_integers_beyond_what_a_float_can_hold(dtype: torch.dtype) -> None:
    """Random generators and hashes keep such numbers; they must not be rounded together."""
    a, b = torch.tensor([2**60], dtype=dtype), torch.tensor([2**60 + 1], dtype=dtype)
    assert difference(a, b) == Difference(1.0, 1, 1)
    assert difference(a, a.clone()) == Difference(0.0, 0, 1)


def test_integers_at_both_ends() -> None:
    a, b = torch.tensor([-(2**63)]), torch.tensor([2**63 - 1])
    assert difference(a, b) == Difference(2.0**64, 1, 1)


def test_a_payload_that_differs_is_counted() -> None:
    payloads = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert difference(payloads[:1], payloads[1:]) == Difference(0.0, 1, 1)


def test_scalars_and_views() -> None:
    assert difference(torch.tensor(1.0), torch.tensor(3.0)) == Difference(2.0, 1, 1)
    square = torch.arange(6.0).reshape(2, 3)
    assert difference(square.t(), square.t().clone()).count == 0
    assert difference(square.t(), square.reshape(3, 2)).count == 4


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(1, 2\)"):
        difference(torch.zeros(2), torch.zeros(1, 2))


def test_dtypes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"float32 and torch\.float64"):
        difference(torch.zeros(2), torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("ends", [(1.0, -3.0), (-3.0, 1.0)])
def test_every_chunk_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[float, float]
) -> None:
    monkeypatch.setattr(compare, "_CHUNK", 4)
    a = torch.zeros(11)
    b = a.clone()
    b[0], b[10] = ends
    assert difference(a, b) == Difference(3.0, 2, 11)
