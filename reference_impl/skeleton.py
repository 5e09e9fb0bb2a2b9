"""A nested state as a flat dictionary of tensors, and a skeleton of everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .plain import map_leaves, refilled

MARK = "__tensor__"
"""The only key of what stands for a tensor in a skeleton."""


@dataclass
class PerRank:
    """A value that every rank has its own of: random streams, a loader's position."""

    value: Any = None


def split(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Tensors of `tree` by dotted path, and `tree` with their paths in their place.

    Raises:
        ValueError: two paths spell the same key, as ``{"a": {"b": t}, "a.b": t}`` does; or there
            is something inside that one rank's skeleton must not stand for.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _split(tree, (), tensors)


def _split(tree: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        key = ".".join(path)
        if key in tensors:
            raise ValueError(f"two tensors of the state have the key {key!r}")
        tensors[key] = tree
        return {MARK: key}
    if isinstance(tree, Mapping):
        if MARK in tree:
            raise ValueError(f"the key {MARK!r} is taken, and is one at {'.'.join(path)!r}")
        split_up = {key: _split(value, (*path, str(key)), tensors) for key, value in tree.items()}
        return refilled(tree, split_up)
    if isinstance(tree, (list, tuple)) and not isinstance(tree, torch.Size):
        items = [_split(value, (*path, str(i)), tensors) for i, value in enumerate(tree)]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, (PerRank, nn.Module, Optimizer)):
        raise ValueError(
            f"a {type(tree).__name__} at {'.'.join(path)!r}: inside of another value it would be"
            " pickled as rank 0 has it; put it at the top of the mapping"
        )
    map_leaves(tree, lambda leaf: _refuse_dtensor(leaf, path))
    return tree


def _refuse_dtensor(leaf: Any, path: tuple[str, ...]) -> Any:
    if isinstance(leaf, DTensor):
        raise ValueError(
            f"an object at {'.'.join(path)!r} has a DTensor inside, of which a pickle would hold"
            " one rank's part; keep tensors in mappings and sequences"
        )
    return leaf


def join(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `split`."""
    if isinstance(skeleton, dict):
        if skeleton.keys() == {MARK}:
            return tensors[skeleton[MARK]]
        return refilled(skeleton, {key: join(value, tensors) for key, value in skeleton.items()})
    if isinstance(skeleton, (list, tuple)) and not isinstance(skeleton, torch.Size):
        items = [join(value, tensors) for value in skeleton]
        if hasattr(skeleton, "_fields"):
            return type(skeleton)(*items)
        return items if isinstance(skeleton, list) else tuple(items)
    return skeleton
