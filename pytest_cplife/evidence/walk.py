"""Walking a checkpoint's payload: every leaf, also inside objects and dataclasses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MAX_DEPTH = 60


def walk(payload: Any) -> Iterator[tuple[str, Any]]:
    """Every node of `payload` that is no container, with its path, such as ``model['a.weight']``.

    Mappings, sequences, sets and the attributes of objects (``__dict__`` and ``__slots__``) are
    entered; an object is visited once, however often it is referred to. Tensors are leaves.
    """
    yield from _walk(payload, "", set(), 0)


def containers(payload: Any) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Every mapping in `payload`, outer ones first, with its path."""
    queue: list[tuple[str, Any]] = [("", payload)]
    seen: set[int] = set()
    while queue:
        path, node = queue.pop(0)
        if id(node) in seen or isinstance(node, torch.Tensor):
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            yield path, node
        queue.extend(_children(node, path))


def _walk(node: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    children = [] if isinstance(node, torch.Tensor) else _children(node, path)
    if not children:
        yield path, node
        return
    if id(node) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(node))
    for child_path, child in children:
        yield from _walk(child, child_path, seen, depth + 1)


def _children(node: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(node, (str, bytes, bytearray, int, float, complex, bool, type, type(None))):
        return []
    if isinstance(node, Mapping):
        return [(f"{path}[{key!r}]" if path else str(key), value) for key, value in node.items()]
    if isinstance(node, (list, tuple, set, frozenset)):
        return [(f"{path}[{index}]", value) for index, value in enumerate(node)]
    attributes: dict[str, Any] = {}
    for cls in type(node).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(node, name):
                attributes[name] = getattr(node, name)
    attributes.update(getattr(node, "__dict__", {}))
    return [(f"{path}.{name}", value) for name, value in attributes.items()]
