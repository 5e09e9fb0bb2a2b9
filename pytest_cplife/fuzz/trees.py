"""Trees of described tensors in the containers that checkpoints are made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from pytest_cplife.fuzz.tensors import TensorSpec

CONTAINERS = ("dict", "list", "tuple", "ordered", "named", "box")
"""Kinds of a :class:`Branch`; ``named`` is a named tuple and ``box`` a dataclass, of two fields."""

Scalar = Union[None, bool, int, float, str, bytes]  # noqa: UP007 (an alias that is used at run time)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is no tensor and has to come through unchanged."""

    value: Scalar = None


@dataclass(frozen=True, slots=True)
class Branch:
    """A container; `keys` are those of a mapping, and empty for the other kinds."""

    kind: str
    children: tuple[Tree, ...] = ()
    keys: tuple[str, ...] = ()


Tree = Union[TensorSpec, Leaf, Branch]  # noqa: UP007 (recursive)


class Pair(NamedTuple):
    """What a branch of kind ``named`` is built as."""

    first: Any
    second: Any


@dataclass
class Box:
    """What a branch of kind ``box`` is built as."""

    first: Any
    second: Any


def tensors(tree: Tree, path: str = "") -> Iterator[tuple[str, TensorSpec]]:
    """Every tensor of `tree` with its path, such as ``a[1].first``; ``it`` where it is alone."""
    if isinstance(tree, TensorSpec):
        yield path or "it", tree
    elif isinstance(tree, Branch):
        for step, child in zip(steps(tree), tree.children, strict=True):
            yield from tensors(child, f"{path}{step}")


def steps(branch: Branch) -> list[str]:
    """How the path goes on to each child."""
    if branch.keys:
        return [f"[{key!r}]" for key in branch.keys]
    if branch.kind in ("named", "box"):
        return [".first", ".second"]
    return [f"[{index}]" for index in range(len(branch.children))]


def build_tree(tree: Tree, tensor: Callable[[TensorSpec], Any]) -> Any:
    """The containers and scalars for real, with `tensor` called for each described tensor."""
    if isinstance(tree, TensorSpec):
        return tensor(tree)
    if isinstance(tree, Leaf):
        return tree.value
    children = [build_tree(child, tensor) for child in tree.children]
    if tree.kind == "dict":
        return dict(zip(tree.keys, children, strict=True))
    if tree.kind == "ordered":
        return OrderedDict(zip(tree.keys, children, strict=True))
    if tree.kind == "named":
        return Pair(*children)
    if tree.kind == "box":
        return Box(*children)
    return tuple(children) if tree.kind == "tuple" else children


def children_of(value: Any) -> list[Any] | None:
    """The children of a built container in the order of its branch; None for anything else."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Box):
        return [value.first, value.second]
    if isinstance(value, (list, tuple)):
        return list(value)
    return None


def show(tree: Tree) -> str:
    """One line per leaf, with its path."""
    return "\n".join(_lines(tree, ""))


def _lines(tree: Tree, path: str) -> Iterator[str]:
    if isinstance(tree, TensorSpec):
        yield f"{path or 'it'}: {tree}"
    elif isinstance(tree, Leaf):
        yield f"{path or 'it'}: {tree.value!r}"
    elif not tree.children:
        yield f"{path or 'it'}: empty {tree.kind}"
    else:
        for step, child in zip(steps(tree), tree.children, strict=True):
            yield from _lines(child, f"{path}{step}")


def to_json(tree: Tree) -> dict[str, Any]:
    if isinstance(tree, TensorSpec):
        return {"tensor": tree.to_json()}
    if isinstance(tree, Leaf):
        if isinstance(tree.value, bytes):
            return {"bytes": tree.value.hex()}
        return {"value": tree.value}
    return {
        "container": tree.kind,
        "keys": list(tree.keys),
        "children": [to_json(child) for child in tree.children],
    }


def from_json(data: dict[str, Any]) -> Tree:
    if "tensor" in data:
        return TensorSpec.from_json(data["tensor"])
    if "bytes" in data:
        return Leaf(bytes.fromhex(data["bytes"]))
    if "value" in data:
        return Leaf(data["value"])
    children = tuple(from_json(child) for child in data["children"])
    return Branch(data["container"], children, tuple(data["keys"]))
