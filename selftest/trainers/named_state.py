"""Optimizer state by parameter name, read and restored without a step.

torch's getters make a hidden ``step()`` where an optimizer has no state yet, and
``Optimizer.load_state_dict`` goes by position; here names decide, and reading only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def plain(value: Any) -> Any:
    """A full tensor on the CPU for any tensor, everything else as it is. Collective."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu() if isinstance(value, Tensor) else value


def gathered(values: Mapping[str, Any], keep: bool) -> dict[str, Any]:
    """Each value as `plain` gives it, where `keep`; else nothing, and one at a time. Collective."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        whole = plain(value)
        if keep:
            kept[name] = whole
    return kept


def place_like(value: Tensor, like: Tensor) -> Tensor:
    """Lay a full entry out as its parameter is; a scalar such as ``step`` stays as it was saved.

    Every rank has read the same file, so nothing is sent.
    """
    if value.shape != like.shape:
        return value
    if isinstance(like, DTensor):
        value = value.to(like.device)
        return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    return value.to(like.device)


def export_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, keep: bool = True
) -> dict[str, Any]:
    """State and groups by name, with plain full tensors where `keep`. Collective."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = {
        names[id(parameter)]: gathered(entries, keep)
        for parameter, entries in optimizer.state.items()
    }
    groups = [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    return {"state": state, "param_groups": groups}


def check_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
) -> None:
    """Refuse state of other parameters, sizes or groups: torch would take it without a word.

    Raises:
        ValueError: the file's optimizer does not fit the live one.
    """
    check_names(model, optimizer, saved)
    shapes = dict(model.named_parameters())
    for name, entries in saved["state"].items():
        check_sizes(name, entries, shapes[name])
    check_groups(model, optimizer, saved)


def check_names(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
) -> None:
    """Raise where the file's optimizer has not the live one's parameters, by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    live = {names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    listed = {name for group in saved["param_groups"] for name in group["params"]}
    if listed != live or not set(saved["state"]) <= live:
        raise ValueError(f"the file's optimizer has other parameters: {live ^ listed}")


def check_sizes(name: object, entries: Mapping[str, Any], parameter: Tensor) -> None:
    """Raise where an entry that has dimensions has not its parameter's."""
    for key, value in entries.items():
        if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
            raise ValueError(
                f"{key} of {name} has shape {tuple(value.shape)}, not {tuple(parameter.shape)}"
            )


def check_groups(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
) -> None:
    """Raise where the parameters of a live group are in several groups of the file."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        own = {names[id(parameter)] for parameter in group["params"]}
        sources = [source for source in saved["param_groups"] if own & set(source["params"])]
        if len(sources) > 1:
            raise ValueError(f"{sorted(own)} are in {len(sources)} groups of the file's optimizer")


def restore_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    saved: Mapping[str, Any],
) -> None:
    """Put back what `export_optimizer` gave; parameters without saved state end without any."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups_of = {name: group for group in saved["param_groups"] for name in group["params"]}
    optimizer.state.clear()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entries = saved["state"].get(names[id(parameter)])
            if entries is not None:
                optimizer.state[parameter] = {
                    key: place_like(value.clone(), parameter)
                    if isinstance(value, Tensor)
                    else value
                    for key, value in entries.items()
                }
        source = groups_of[names[id(group["params"][0])]]
        group.update({key: value for key, value in source.items() if key != "params"})
