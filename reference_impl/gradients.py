"""Gradients between backward() and step(): reduce, measure, clip, and refuse what is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def reduce_gradients(parameters: Iterable[Tensor]) -> None:
    """Bring every gradient to its parameter's placements.

    `Partial` terms have been collected over the micro-batches and are summed over the mesh
    here, in one all-reduce per mesh dimension for all parameters together. An optimizer that
    steps on a `Partial` gradient uses one rank's term only.
    """
    buckets: dict[tuple[DeviceMesh, tuple[int, ...], torch.dtype], list[DTensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or gradient is None:
            continue
        if not isinstance(gradient, DTensor):
            raise TypeError("a DTensor parameter has a plain gradient")
        changed = [
            dim
            for dim, (now, then) in enumerate(
                zip(gradient.placements, parameter.placements, strict=True)
            )
            if now != then
        ]
        if all(
            gradient.placements[dim].is_partial() and parameter.placements[dim].is_replicate()
            for dim in changed
        ):
            bucket = (parameter.device_mesh, tuple(changed), gradient.dtype)
            buckets.setdefault(bucket, []).append(parameter)
        else:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    for (mesh, dims, _), members in buckets.items():
        if dims:
            _sum_terms(members, mesh, dims)


def _sum_terms(parameters: list[DTensor], mesh: DeviceMesh, dims: tuple[int, ...]) -> None:
    """All-reduce the local gradients over `dims` as one vector."""
    terms = [_local_gradient(parameter) for parameter in parameters]
    vector = torch.cat([term.reshape(-1) for term in terms])
    for dim in dims:
        dist.all_reduce(vector, group=mesh.get_group(dim))
    sums = torch.split(vector, [term.numel() for term in terms])
    for parameter, term, total in zip(parameters, terms, sums, strict=True):
        parameter.grad = DTensor.from_local(
            total.view_as(term).clone(),
            mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )


def _local_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    """The norm over all gradients as one vector, the same on every rank.

    `torch.nn.utils.get_total_norm` gives it too, with one collective per parameter and
    not for lists that mix DTensors and tensors; here equal layouts are summed first.
    """
    squares: dict[tuple[DeviceMesh, tuple[bool, ...]] | None, list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        layout = None
        if isinstance(gradient, DTensor):
            cut = tuple(not placement.is_replicate() for placement in gradient.placements)
            layout = (gradient.device_mesh, cut)
            gradient = gradient.to_local()
        squares.setdefault(layout, []).append(gradient.detach().float().square().sum())
    total = 0.0
    for layout, terms in squares.items():
        square = torch.stack(terms).sum()
        if layout is not None:
            mesh, cut = layout
            # Only dimensions that cut the tensor are summed: replicas would count twice.
            for dim in (dim for dim, is_cut in enumerate(cut) if is_cut):
                dist.all_reduce(square, group=mesh.get_group(dim))
        total += float(square.item())
    return math.sqrt(total)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale the gradients so that their norm is at most `max_norm`; returns the norm before.

    Raises:
        RuntimeError: the norm is zero or not finite. A loss that was detached, or re-wrapped
            as a new DTensor, has no way back to the parameters, and backward() says nothing.
    """
    parameters = list(parameters)
    norm = gradient_norm(parameters)
    if not math.isfinite(norm) or norm == 0.0:
        raise RuntimeError(
            f"the gradient norm is {norm}: "
            + (
                "the loss has lost its graph (detached, or wrapped again by DTensor.from_local"
                " outside of autograd?)"
                if norm == 0.0
                else "the loss or a gradient has overflowed"
            )
        )
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:
                _local_gradient(parameter).mul_(max_norm / norm)
    return norm
