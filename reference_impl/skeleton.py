"""A nested state as a flat dictionary of tensors, and a skeleton of everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from .plain import map_leaves

MARK = "__tensor__"


def split(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Tensors of `tree` by dotted path, and `tree` with their paths in their place.

    Raises:
        ValueError: two paths spell the same key, as ``{"a": {"b": t}, "a.b": t}`` does.
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
        return {key: _split(value, (*path, str(key)), tensors) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [_split(value, (*path, str(i)), tensors) for i, value in enumerate(tree)]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return items if isinstance(tree, list) else tuple(items)
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
        return {key: join(value, tensors) for key, value in skeleton.items()}
    if isinstance(skeleton, (list, tuple)):
        items = [join(value, tensors) for value in skeleton]
        if hasattr(skeleton, "_fields"):
            return type(skeleton)(*items)
        return items if isinstance(skeleton, list) else tuple(items)
    return skeleton
