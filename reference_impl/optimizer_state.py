"""Optimizer state by parameter name: out without a side effect, in only after every check.

`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` would name it, too. Before
the first step it makes a real ``optimizer.step()`` to create the state, so that a save changes
the training; and while gradients exist it returns an empty state. This one reads what is there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .plain import realign_tensor

State = dict[str, Any]


@dataclass(frozen=True)
class StagedOptimizer:
    """A state that fits, ready to be put in."""

    state: dict[Tensor, State]
    groups: list[State]


def parameter_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """FQNs of the optimizer's parameters, by group.

    Raises:
        ValueError: the optimizer holds a parameter that is not the model's (any more).
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]
    if any("" in group for group in groups):
        raise ValueError(
            "the optimizer holds parameters that are not the model's; was it built before the"
            " model was wrapped?"
        )
    return groups


def export_optimizer(model: nn.Module, optimizer: Optimizer) -> State:
    """``{"state": {FQN: ...}, "param_groups": [...]}`` of the live tensors. Changes nothing."""
    names = parameter_names(model, optimizer)
    state: dict[str, State] = {}
    groups: list[State] = []
    for fqns, group in zip(names, optimizer.param_groups, strict=True):
        for fqn, parameter in zip(fqns, group["params"], strict=True):
            if parameter in optimizer.state:
                state[fqn] = dict(optimizer.state[parameter])
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": fqns})
    return {"state": state, "param_groups": groups}


def stage_optimizer(
    model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Any]
) -> StagedOptimizer:
    """`saved` in the layout of the live parameters; nothing is changed yet.

    Raises:
        ValueError: names, groups or shapes do not fit.
    """
    names = parameter_names(model, optimizer)
    if has_integer_keys(saved):
        saved = name_integer_keys(saved, names, optimizer)
    listed = {fqn for group in saved["param_groups"] for fqn in group["params"]}
    known = {fqn for group in names for fqn in group}
    if listed != known:
        raise ValueError(
            f"the optimizer's parameters differ: {sorted(known - listed)} are not in the file,"
            f" {sorted(listed - known)} are only there"
        )
    groups = [_saved_group(fqns, saved["param_groups"]) for fqns in names]
    state: dict[Tensor, State] = {}
    for fqns, group, options in zip(names, optimizer.param_groups, groups, strict=True):
        on_device = bool(options.get("capturable") or options.get("fused"))
        for fqn, parameter in zip(fqns, group["params"], strict=True):
            # Without an entry the parameter had not been stepped; then it has no state here.
            if fqn in saved["state"]:
                live = optimizer.state.get(parameter, {})
                state[parameter] = {
                    entry: _laid_out(entry, value, fqn, parameter, live.get(entry), on_device)
                    for entry, value in saved["state"][fqn].items()
                }
    return StagedOptimizer(state, groups)


def commit_optimizer(optimizer: Optimizer, staged: StagedOptimizer) -> None:
    """Put a staged state into the live optimizer."""
    optimizer.state.clear()
    optimizer.state.update(staged.state)
    for group, saved in zip(optimizer.param_groups, staged.groups, strict=True):
        group.update(saved)


def align_optimizer(optimizer: Optimizer) -> None:
    """Bring tensors of a parameter's shape to its placements, before ``step()``.

    State that came from elsewhere (a framework's own load) may be plain or laid out
    otherwise: an elementwise update of a shard with a whole moment fails, at best.
    """
    for parameter, entries in optimizer.state.items():
        if not isinstance(parameter, DTensor):
            continue
        for name, value in entries.items():
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                continue
            if not isinstance(value, DTensor):
                entries[name] = realign_tensor(value, parameter)
            elif value.placements != parameter.placements:
                entries[name] = value.redistribute(placements=parameter.placements)


def has_integer_keys(saved: Mapping[str, Any]) -> bool:
    """True for the layout of `Optimizer.state_dict`, where parameters are numbers."""
    return any(isinstance(key, int) for group in saved["param_groups"] for key in group["params"])


def name_integer_keys(
    saved: Mapping[str, Any], names: list[list[str]], optimizer: Optimizer
) -> Mapping[str, Any]:
    """The legacy layout with names: number n is the n-th parameter in the declared order.

    Raises:
        ValueError: the groups have other sizes, or a state another shape than its parameter.
    """
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != [len(group) for group in names]:
        raise ValueError(
            f"integer keys with groups of {sizes} parameters, here {[len(g) for g in names]}:"
            " they can only be mapped by their order"
        )
    flat = [fqn for group in names for fqn in group]
    order = [key for group in saved["param_groups"] for key in group["params"]]
    by_key = dict(zip(order, flat, strict=True))
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    shape_of = dict(zip(flat, shapes, strict=True))
    for key, entries in saved["state"].items():
        for entry, value in entries.items():
            fits = not isinstance(value, Tensor) or value.ndim == 0
            if not fits and value.shape != shape_of[by_key[key]]:
                raise ValueError(
                    f"integer key {key}: {entry!r} has shape {tuple(value.shape)},"
                    f" {by_key[key]!r} has {tuple(shape_of[by_key[key]])}; was the file saved with"
                    " another order of parameters?"
                )
    groups = [
        {**group, "params": fqns} for group, fqns in zip(saved["param_groups"], names, strict=True)
    ]
    return {
        "state": {by_key[key]: entries for key, entries in saved["state"].items()},
        "param_groups": groups,
    }


def _laid_out(
    entry: str, value: Any, fqn: str, parameter: Tensor, live: Any, on_device: bool
) -> Any:
    """A state tensor laid out like its parameter; scalars and other values stay what they are.

    Args:
        on_device: the group is ``capturable`` or ``fused``, whose kernels read the step count on
            the parameter's device; all others want it on the CPU.
    """
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if value.shape == parameter.shape and not (entry == "step" and value.ndim == 0):
        aligned = realign_tensor(value, parameter, alias=True)
        # What comes as a DTensor was read for this. A plain file is mapped into memory, and the
        # optimizer writes into its state.
        return aligned if isinstance(value, DTensor) else aligned.clone()
    if value.ndim and not (isinstance(live, Tensor) and live.shape == value.shape):
        raise ValueError(
            f"{entry!r} of {fqn!r} has shape {tuple(value.shape)}, not {tuple(parameter.shape)}"
        )
    device = torch.device("cpu") if entry == "step" and not on_device else parameter.device
    return value.detach().to(live.device if isinstance(live, Tensor) else device).clone()


def _saved_group(fqns: list[str], saved: list[State]) -> State:
    """The options of one live group, from the saved groups that hold its parameters."""
    found = [group for group in saved if set(fqns) & set(group["params"])]
    if not fqns:
        found = [group for group in saved if not group["params"]]
    options = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in found
    ]
    if any(option != options[0] for option in options[1:]):
        raise ValueError(f"the parameters {fqns} are in groups of different options in the file")
    return copy.deepcopy(options[0]) if options else {}
