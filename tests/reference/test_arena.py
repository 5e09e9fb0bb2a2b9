"""Memory for many tensors: what comes out is as good as fresh tensors."""

from __future__ import annotations

import pytest
import torch
from pytest_cplife.reference_impl import arena
from pytest_cplife.reference_impl.arena import LARGE, empty_tensors
from torch import Tensor

BIG = LARGE // 4
"""Elements of float32 that fill a block."""


def wanted(*templates: Tensor) -> dict[int, tuple[Tensor, torch.dtype]]:
    return {i: (template, template.dtype) for i, template in enumerate(templates)}


TEMPLATES = (
    torch.empty(BIG),
    torch.empty(3, 5, dtype=torch.bfloat16),
    torch.empty(4, 6).t(),
    torch.empty(0, 7),
    torch.empty((), dtype=torch.int64),
    torch.empty(1, 3).expand(4, 3),
    torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.empty(7, device="meta", dtype=torch.bool),
    torch.empty(5, dtype=torch.complex128),
)


def test_tensors_are_like_their_templates() -> None:
    for made, template in zip(empty_tensors(wanted(*TEMPLATES)).values(), TEMPLATES, strict=True):
        fresh = torch.empty_like(template, device="cpu")
        assert (made.shape, made.stride(), made.dtype) == (fresh.shape, fresh.stride(), fresh.dtype)
        assert made.device == fresh.device


def test_tensors_share_a_block_and_no_element() -> None:
    made = empty_tensors(wanted(*TEMPLATES))
    for i, tensor in made.items():
        tensor.fill_(i % 2 if tensor.dtype == torch.bool else i)
    for i, tensor in made.items():
        assert bool((tensor == (i % 2 if tensor.dtype == torch.bool else i)).all()), i
    blocks = {tensor.untyped_storage().data_ptr() for tensor in made.values() if tensor.numel()}
    starts = sorted(blocks)
    # One mapping: all begin within its length of each other.
    assert starts[-1] - starts[0] < 2 * LARGE


def test_a_dtype_of_its_own() -> None:
    made = empty_tensors({"a": (torch.empty(BIG), torch.float64)})
    assert made["a"].dtype == torch.float64
    made["a"].fill_(1.0)


@pytest.mark.parametrize("size", [LARGE // 4 - 64, BIG])
def test_small_demands_need_no_block(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(arena, "_block", lambda size: asked.append(size))
    empty_tensors(wanted(torch.empty(size)))
    assert len(asked) == (size == BIG)


def test_without_large_pages_tensors_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(arena.mmap, "MADV_HUGEPAGE", raising=False)
    made = empty_tensors(wanted(torch.empty(BIG)))
    made[0].fill_(2.0)
    assert made[0].untyped_storage().nbytes() == 4 * BIG


def test_the_block_lives_as_long_as_a_tensor() -> None:
    kept = empty_tensors(wanted(torch.empty(BIG)))[0]
    kept.fill_(3.0)
    assert bool((kept == 3.0).all())
