"""Gradients that are nudged: by a last bit, alike on replicas, and beside no random stream."""

from __future__ import annotations

import pytest
import torch

from pytest_cplife.scenarios.rounding import nudge


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_every_element_moves_by_a_unit_of_the_largest(dtype: torch.dtype) -> None:
    gradient = torch.tensor([3.0, -4.0, 0.0, 1e-4], dtype=dtype)
    before = gradient.clone()
    nudge(gradient, seed=7)
    unit = 4.0 * torch.finfo(dtype).eps
    moved = (gradient - before).double().abs()
    assert torch.all((moved > 0) & (moved <= 2 * unit))
    # Where terms cancelled, the error is not small beside what is left of them.
    assert moved[2] == unit


def test_replicas_are_nudged_alike() -> None:
    one, other = torch.linspace(-1.0, 1.0, 50), torch.linspace(-1.0, 1.0, 50)
    state = torch.get_rng_state()
    nudge(one, seed=3)
    nudge(other, seed=3)
    assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    third = torch.linspace(-1.0, 1.0, 50)
    nudge(third, seed=4)
    assert not torch.equal(one, third)


def test_what_has_no_last_bit_is_left_alone() -> None:
    for gradient in (torch.zeros(0), torch.tensor([1, 2]), torch.eye(2).to_sparse()):
        before = gradient.clone()
        nudge(gradient, seed=1)
        assert torch.equal(gradient.to_dense(), before.to_dense())
