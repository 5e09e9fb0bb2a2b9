"""Refusing a file of another architecture before anything is touched, on every rank alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor


def check_architecture(saved: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    """Raise where keys or global shapes differ.

    Every rank reads the same file and so comes to the same end. torch's own strict loading raises
    too late: it has changed other weights by then, and where rank 0 scatters what it read, it
    raises on rank 0 only and leaves the others in a broadcast.
    """
    missing, unknown = live.keys() - saved.keys(), saved.keys() - live.keys()
    resized = [n for n in live.keys() & saved.keys() if live[n].shape != saved[n].shape]
    if missing or unknown or resized:
        raise ValueError(
            f"not this architecture: missing {sorted(missing)}, unknown {sorted(unknown)},"
            f" of another size {sorted(resized)}"
        )


def check_same_file(path: Path) -> None:
    """Raise on every rank where one has read another content than rank 0. Collective."""
    if not dist.is_initialized():
        return
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    every: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(every, own)
    if len(set(every)) > 1:
        raise ValueError(f"the ranks have read different files under {path.name}")


def check_named(optimizers: Sequence[Mapping[str, Any]]) -> None:
    """Raise where optimizer state is keyed by position, which says nothing of whose it is.

    torch's own loading keeps what it cannot map under the key that it had, without a word.
    """
    for optimizer in optimizers:
        keys = [key for group in optimizer["param_groups"] for key in group["params"]]
        if any(not isinstance(key, str) for key in (*keys, *optimizer["state"])):
            raise ValueError("optimizer state is keyed by position; this format keys it by name")
