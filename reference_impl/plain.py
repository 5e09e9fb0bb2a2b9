"""DTensors in any nesting to plain full tensors, and back to the layout of a live template."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from .agreement import global_rank
from .gather import gather_to

F = TypeVar("F", bound=Callable[..., Any])

_LEAVES = (Tensor, int, float, str, bytes, type(None))
"""Told apart from containers at once: the state of one random stream is hundreds of integers."""


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of nested mappings, sequences and dataclasses with `change` applied to the rest.

    Types and attributes of the containers are kept: the ``_metadata`` of a state dict (the
    versions of its modules) is an attribute, and a plain ``dict(...)`` of it is a loss.
    """
    if isinstance(tree, _LEAVES):
        return change(tree)
    if isinstance(tree, Mapping):
        return refilled(tree, {key: map_leaves(value, change) for key, value in tree.items()})
    if isinstance(tree, list):
        return [map_leaves(value, change) for value in tree]
    if isinstance(tree, tuple) and not isinstance(tree, torch.Size):
        items = [map_leaves(value, change) for value in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, (set, frozenset)):
        return type(tree)(map_leaves(value, change) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        clone = copy.copy(tree)
        for field in dataclasses.fields(tree):
            if hasattr(tree, field.name):
                value = map_leaves(getattr(tree, field.name), change)
                object.__setattr__(clone, field.name, value)  # frozen ones, too
        return clone
    return change(tree)


def refilled(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """`items` in a copy of `mapping`, with its type and attributes; a dict for what is none."""
    if not isinstance(mapping, dict):
        return items
    emptied = copy.copy(mapping)
    emptied.clear()
    emptied.update(items)
    return emptied


def outside_inference(function: F) -> F:
    """Run `function` without gradients, but never in inference mode.

    There DTensor's views raise ("Cannot set version_counter for inference tensor"), and what
    is made there can never be trained with again.
    """

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return guarded  # type: ignore[return-value]


@outside_inference
def to_plain(tree: Any, only: int | None = None) -> Any:
    """`tree` with every tensor plain, full, on the CPU, and sharing memory with no live one.

    Collective: all ranks pass trees of one structure. Tensors that are one object (tied
    parameters, seen with ``keep_vars=True``) stay one object.

    Args:
        only: the global rank that needs the result. The others get None in place of each
            tensor; they send their shards, one after another, and never hold a full one.
    """
    done: dict[int, Tensor | None] = {}

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in done:
            done[id(leaf)] = _plain_tensor(leaf, only)
        return done[id(leaf)]

    return map_leaves(tree, plain)


def _plain_tensor(tensor: Tensor, only: int | None) -> Tensor | None:
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        if any(placement.is_partial() for placement in tensor.placements):
            raise ValueError(f"a Partial DTensor has no value to save yet: {tensor.placements}")
        if only is not None:
            return gather_to(tensor, only)
        tensor = tensor.full_tensor()
    elif only is not None and only != global_rank():
        return None
    # A clone also leaves behind the storage that a view would drag into the file.
    return tensor.to("cpu", copy=True).contiguous()


@outside_inference
def realign(tree: Any, template: Any) -> Any:
    """`tree` with every tensor laid out like the one at the same place in `template`.

    Plain tensors move without communication: each rank cuts its part out of the full tensor
    that it has. Live DTensors of another layout are redistributed, which is collective.
    Tensors without a counterpart stay as they are.

    Raises:
        ValueError: a shape differs, or a layout cannot be reached from what the rank has.
    """
    if isinstance(template, Tensor) and isinstance(tree, Tensor):
        return realign_tensor(tree, template)
    if isinstance(tree, dict) and isinstance(template, Mapping):
        aligned = copy.copy(tree)
        for key, value in tree.items():
            aligned[key] = realign(value, template.get(key))
        return aligned
    if isinstance(tree, (list, tuple)) and isinstance(template, (list, tuple)):
        partners: Sequence[Any] = [*template, *[None] * (len(tree) - len(template))]
        items = [realign(value, partners[i]) for i, value in enumerate(tree)]
        if isinstance(tree, list):
            return items
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        clone = copy.copy(tree)
        for field in dataclasses.fields(tree):
            value = realign(getattr(tree, field.name), getattr(template, field.name, None))
            object.__setattr__(clone, field.name, value)
        return clone
    return tree


@outside_inference
def realign_tensor(tensor: Tensor, template: Tensor, *, alias: bool = False) -> Tensor:
    """`tensor` with the device of `template`, and its mesh, placements and stride if it has them.

    Args:
        alias: a DTensor that lies like the template already need not be copied.
    """
    if tensor.shape != template.shape:
        raise ValueError(f"shape {tuple(tensor.shape)}, expected {tuple(template.shape)}")
    if isinstance(tensor, DTensor):
        if (
            isinstance(template, DTensor)
            and tensor.device_mesh == template.device_mesh
            and tensor.placements == template.placements
        ):
            if alias:
                return tensor.detach()
            copied = tensor.detach().clone()
            assert isinstance(copied, DTensor)
            return _strided_like(copied, template)
        if isinstance(template, DTensor) and tensor.device_mesh == template.device_mesh:
            moved = tensor.redistribute(placements=template.placements)
            return _strided_like(moved, template).detach()
        tensor = tensor.full_tensor()
    tensor = tensor.detach()
    if not isinstance(template, DTensor):
        return tensor.to(template.device)
    if any(placement.is_partial() for placement in template.placements):
        raise ValueError("a Partial template has no layout that a value could take")
    # `src_data_rank=None`: slice what this rank has. The default would let rank 0's content
    # win over ranks that have read something else, without a word.
    tensor = tensor.to(template.device_mesh.device_type).contiguous()
    cut = distribute_tensor(tensor, template.device_mesh, template.placements, src_data_rank=None)
    return _strided_like(cut, template)


def _strided_like(tensor: DTensor, template: DTensor) -> DTensor:
    """A DTensor whose dimensions lie in memory in the order of the template's, here and globally.

    ``distribute_tensor`` takes the stride from the value, and what comes out of a file is
    contiguous: a weight that was transposed would not be any more, with other kernels for it.
    """
    local, like = tensor.to_local(), template.to_local()
    if (tensor.stride(), local.stride()) == (template.stride(), like.stride()):
        return tensor
    whole = _in_order_of(template, torch.empty(tensor.shape, device="meta"))
    return DTensor.from_local(
        _in_order_of(like, local),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=whole.stride(),
    )


def _in_order_of(template: Tensor, tensor: Tensor) -> Tensor:
    """A dense copy with the dimensions in the order of the template's strides."""
    order = sorted(range(tensor.ndim), key=template.stride().__getitem__, reverse=True)
    back = sorted(range(tensor.ndim), key=order.__getitem__)
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def full_without_group(tensor: DTensor) -> Tensor:
    """The full value of a DTensor out of a file, whose process group is long gone.

    Raises:
        ValueError: it is cut over more than one rank; the file has one rank's part of it.
    """
    cut = [
        dim
        for dim, placement in enumerate(tensor.placements)
        if not placement.is_replicate() and tensor.device_mesh.shape[dim] > 1
    ]
    local = tensor.to_local()
    if cut or local.shape != tensor.shape:
        raise ValueError(
            f"a DTensor of shape {tuple(tensor.shape)} with placements {tensor.placements} was"
            f" saved as it was; only one rank's part, {tuple(local.shape)}, is there"
        )
    return local
