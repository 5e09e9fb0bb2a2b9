"""Walking a checkpoint's payload: every leaf, also inside objects and dataclasses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_SCALARS = (str, bytes, bytearray, int, float, complex, bool, type(None))
_LEAVES = (*_SCALARS, type, torch.Tensor)


def walk(payload: Any) -> Iterator[tuple[str, Any]]:
    """Every node of `payload` that has nothing inside, with its path: ``model['a.weight']``.

    Mappings (their keys too), sequences, sets and the attributes of objects (``__dict__`` and
    ``__slots__``) are entered; an object is entered once, however often it is referred to.
    Tensors are leaves.
    """
    stack: list[tuple[str, Any]] = [("", payload)]
    seen: set[int] = set()
    while stack:
        path, node = stack.pop()
        children = _children(node, path)
        if not children:
            yield path, node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.extend(reversed(children))


def containers(payload: Any) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Every mapping in `payload`, outer ones first, with its path."""
    queue: deque[tuple[str, Any]] = deque([("", payload)])
    seen: set[int] = set()
    while queue:
        path, node = queue.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            yield path, node
        queue.extend(child for child in _children(node, path) if not isinstance(child[1], _LEAVES))


def _children(node: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(node, _LEAVES):
        return []
    if isinstance(node, Mapping):
        return _items(node, path)
    if isinstance(node, (list, tuple, deque, set, frozenset)):
        return [(f"{path}[{index}]", value) for index, value in enumerate(node)]
    attributes: dict[str, Any] = {}
    for cls in type(node).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{cls.__name__.lstrip('_')}{name}"
            if hasattr(node, name):
                attributes[name] = getattr(node, name)
    attributes.update(getattr(node, "__dict__", {}))
    return [(f"{path}.{name}", value) for name, value in attributes.items()]


def _items(node: Mapping[Any, Any], path: str) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for position, (key, value) in enumerate(node.items()):
        if isinstance(key, _SCALARS):
            items.append((f"{path}[{key!r}]" if path else str(key), value))
        else:
            # An optimizer's own state has tensors for keys, whose text would be all their values.
            items.append((f"{path}[key {position}]", key))
            items.append((f"{path}[{type(key).__name__} {position}]", value))
    return items
