"""Edits of the optimizer state in a file: other keys, orders, groups and sizes, or some of it gone.

Keys are parameter names or, as torch writes them, positions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.evidence.observe import flat_values
from pytest_cplife.scenarios.editing import Edit, NothingToEdit, editable
from pytest_cplife.scenarios.order import Stage

Optimizer = MutableMapping[str, Any]

_PLACE = ("params", "param_names")
_SCHEDULED = ("lr", "initial_lr")
"""Keys that a schedule may well set right after a load, whatever the file's groups say."""


def integer_keys(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    for optimizer in _named(view):
        _number(optimizer)
    return "optimizer state"


def other_order(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """By position, as if the parameters had once been registered the other way round."""
    for optimizer in _named(view):
        for group in optimizer["param_groups"]:
            group["params"] = list(reversed(group["params"]))
        _number(optimizer)
    return "optimizer state"


def names_in_another_order(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """By name, with entries, groups and the names in them all the other way round."""
    for optimizer in _named(view):
        optimizer["state"] = dict(reversed(optimizer["state"].items()))
        for group in optimizer["param_groups"]:
            for key in _PLACE:
                if key in group:
                    group[key] = list(reversed(group[key]))
        optimizer["param_groups"] = list(reversed(optimizer["param_groups"]))
    return "optimizer state"


def more_groups(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """The largest group is two, of which the second has another value under one key."""
    optimizer, group = max(
        ((o, g) for o in view.optimizers for g in o["param_groups"]),
        key=lambda pair: len(pair[1].get("params", ())),
        default=(None, None),
    )
    if optimizer is None or group is None or len(group.get("params", ())) < 2:
        raise NothingToEdit("the file has no param group of two parameters")
    half = len(group["params"]) // 2
    second = {
        key: value[half:] if key in _PLACE else copy.deepcopy(value)
        for key, value in editable(group).items()
    }
    for key in _PLACE:
        if key in group:
            group[key] = group[key][:half]
    numbers = {k: v for k, v in second.items() if type(v) is float and k not in _SCHEDULED}
    if numbers:
        key = min(numbers, key=lambda name: (name != "weight_decay", name))
        second[key] = 2.0 * numbers[key] + 0.001
    optimizer["param_groups"].insert(optimizer["param_groups"].index(group) + 1, second)
    return _note_options(view, stage, run, "more param groups")


def fewer_groups(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """The first two groups are one, with the first one's values."""
    optimizer = next((o for o in view.optimizers if len(o["param_groups"]) > 1), None)
    if optimizer is None:
        raise NothingToEdit("no optimizer in the file has two param groups")
    first, second = optimizer["param_groups"][:2]
    for key in _PLACE:
        if key in first:
            editable(first)[key] = [*first[key], *second[key]]
    del optimizer["param_groups"][1]
    return _note_options(view, stage, run, "fewer param groups")


def _note_options(view: CheckpointView, stage: Stage, run: TrainingRun, edit: str) -> str:
    """Note, by name, the values that the edited file's groups give to each parameter."""
    options = {}
    for position, optimizer in enumerate(view.optimizers):
        names = names_by_key(optimizer, run, position)
        for group in optimizer["param_groups"]:
            kept = {k: v for k, v in group.items() if k not in (*_PLACE, *_SCHEDULED)}
            values = flat_values(kept, stage.recorder.store) if kept else {}
            options.update({names.get(key, str(key)): values for key in group["params"]})
    stage.recorder.fact(f"options of {edit}", options)
    return "param groups"


def resized(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """One moment has a row too many."""
    name, entries, entry = max(
        _moments(view, run), key=lambda found: int(found[1][found[2]].ndim), default=("", {}, "")
    )
    if not name:
        raise NothingToEdit("the file has no optimizer state with dimensions")
    entries[entry] = torch.cat([entries[entry], entries[entry][:1]])
    return f"{name}[{entry}]"


def missing(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    """One parameter has no state, though it has been trained."""
    for position, optimizer in enumerate(view.optimizers):
        names = names_by_key(optimizer, run, position)
        for key in reversed(list(optimizer["state"])):
            if key in names:
                del editable(optimizer["state"])[key]
                return names[key]
    raise NothingToEdit("the file has no optimizer state")


def _moments(
    view: CheckpointView, run: TrainingRun
) -> Iterator[tuple[str, MutableMapping[str, Any], str]]:
    """Parameter's name, entries and an entry's name for each tensor that has dimensions."""
    for position, optimizer in enumerate(view.optimizers):
        names = names_by_key(optimizer, run, position)
        for key, entries in optimizer["state"].items():
            for entry, value in entries.items():
                if torch.is_tensor(value) and value.ndim and key in names:
                    yield names[key], editable(entries), entry


def names_by_key(optimizer: Any, run: TrainingRun, position: int) -> dict[Any, str]:
    """Parameter names by the file's own keys; what is keyed by position follows the live order."""
    keys = [key for group in optimizer["param_groups"] for key in group["params"]]
    if all(isinstance(key, str) for key in keys) or position >= len(run.optimizers):
        return {key: key for key in keys if isinstance(key, str)}
    names: dict[int, str] = {}
    for name, tensor in run.named_parameters():
        names.setdefault(id(tensor), name)
    live = run.optimizers[position].param_groups
    order = [names.get(id(tensor), "") for group in live for tensor in group["params"]]
    return {key: name for key, name in zip(sorted(keys), order, strict=False) if name}


def _named(view: CheckpointView) -> list[Optimizer]:
    """The optimizers of the file, where their state is keyed by name."""
    named = [
        editable(optimizer)
        for optimizer in view.optimizers
        if optimizer["state"] and all(isinstance(key, str) for key in optimizer["state"])
    ]
    if not named:
        raise NothingToEdit("the file has no optimizer state that is keyed by name")
    return named


def _number(optimizer: Optimizer) -> None:
    names = [name for group in optimizer["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    optimizer["state"] = {
        numbers[name]: entries for name, entries in optimizer["state"].items() if name in numbers
    }
    for group in optimizer["param_groups"]:
        group["params"] = [numbers[name] for name in group["params"]]
        group.pop("param_names", None)


LEGACY: dict[str, Edit] = {
    "integer keys": integer_keys,
    "integer keys in another order": other_order,
    "names in another order": names_in_another_order,
    "more param groups": more_groups,
    "fewer param groups": fewer_groups,
}
"""By name: how the optimizer state of an earlier version's file differs from today's."""
