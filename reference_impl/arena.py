"""One block of CPU memory for many tensors, cheap to touch for the first time.

A page of fresh memory is zeroed by the kernel when it is first written to. In small pages that
costs several times as much as the writing: a load that reads into fresh tensors, so that a
failure leaves the live ones alone, spends most of its time there. In large pages it costs little,
but in a virtual machine whose host takes free memory back (free page reporting): there a load of
512 MiB took 1.5 to 2.4 times as long as torch's, and 0.3 times with the reporting switched off.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")

ALIGNMENT = 64
"""Bytes; what torch's own allocator gives."""
LARGE = 2 * 2**20
"""Bytes; less than this is not worth a block."""


def empty_tensors(wanted: Mapping[Key, tuple[Tensor, torch.dtype]]) -> dict[Key, Tensor]:
    """Uninitialised tensors, each like a template, but of a dtype of its own.

    Args:
        wanted: by key, the template, which gives shape, strides and device, and the dtype. A
            template on ``meta`` asks for memory on the CPU.

    Returns:
        Tensors that share no elements. Those on the CPU may share one block of memory, which
        lives as long as any of them: meant for what is used, and dropped, together.
    """
    offsets: dict[Key, int] = {}
    end = 0
    for key, (template, dtype) in wanted.items():
        if template.device.type in ("cpu", "meta"):
            offsets[key] = end
            end += math.ceil(template.numel() * dtype.itemsize / ALIGNMENT) * ALIGNMENT
    block = _block(end) if end >= LARGE else None
    return {
        key: _place(template, dtype, block, offsets.get(key))
        for key, (template, dtype) in wanted.items()
    }


def _block(size: int) -> mmap.mmap | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None  # not Linux: no such pages to ask for
    # A large page begins at a multiple of its size, the mapping anywhere: one more fits them all.
    block = mmap.mmap(-1, size + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        block.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None  # a kernel without them
    return block


def _place(
    template: Tensor, dtype: torch.dtype, block: mmap.mmap | None, offset: int | None
) -> Tensor:
    if block is None or offset is None or not template.numel():
        device = "cpu" if template.device.type == "meta" else template.device
        return torch.empty_like(template, dtype=dtype, device=device)
    flat = torch.frombuffer(block, dtype=dtype, count=template.numel(), offset=offset)
    # `empty_like` knows when a template's strides can be kept: not where it overlaps itself.
    strides = torch.empty_like(template, device="meta").stride()
    return flat.as_strided(template.shape, strides)
