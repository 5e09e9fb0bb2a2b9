"""What an archive keeps of a run: the structure of its file, and digests of its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.evidence.records import Record, TensorRecord, ValueRecord
from pytest_cplife.evidence.run import Moment


def structure(view: CheckpointView) -> dict[str, str]:
    """Each part of the file by name, and its type or dtype.

    Shapes are those of the model and hyperparameters those of the run; a file with others is
    still of the same format.
    """
    parts: dict[str, str] = {}
    if isinstance(view.payload, Mapping):
        parts.update({f"entry {key}": _kind(value) for key, value in view.payload.items()})
    parts["model's place"] = f"{view.prefix}* in {view.model_path or 'the top level'}"
    parts.update({f"model {key}": _kind(value) for key, value in view.model.items()})
    for number, optimizer in enumerate(view.optimizers):
        parts.update(_optimizer(f"optimizer {number}", optimizer))
    parts.update({f"average {key}": _kind(value) for key, value in (view.ema or {}).items()})
    parts.update({f"counter {name}": "int" for name in view.counters})
    return parts


def digests(state: Moment, assembler: Assembler) -> dict[str, dict[str, str]]:
    """What a checkpoint of `state` has to give back, by kind and name: digests of full tensors.

    Raises:
        CannotAssemble: the ranks' parts do not make up one tensor.
    """
    # Buffers that no checkpoint holds are made anew, by the code of the day.
    saved = set(state.ranks[0].persistent)
    buffers = {name: column for name, column in state.buffers.items() if name in saved}
    tables: dict[str, Mapping[str, Sequence[Record]]] = {
        "weights": state.parameters,
        "buffers": buffers,
        "optimizer state": state.optimizer_state,
        "averages": state.ema,
    }
    return {
        what: {name: _digest(column, assembler) for name, column in table.items()}
        for what, table in tables.items()
    }


def _digest(column: Sequence[Record], assembler: Assembler) -> str:
    if isinstance(column[0], ValueRecord):
        return f"{column[0].type_name} {column[0].text}"
    return assembler.digest([record for record in column if isinstance(record, TensorRecord)])


def _optimizer(name: str, node: Mapping[str, Any]) -> dict[str, str]:
    parts: dict[str, str] = {}
    state, groups = node["state"], node["param_groups"]
    keys = [key for group in groups for key in group.get("params", ())] or list(state)
    if keys:
        numbered = all(isinstance(key, int) for key in keys)
        parts[f"{name} keys"] = "numbers" if numbered else "names"
    for key, entries in state.items():
        inside = entries if isinstance(entries, Mapping) else {"": entries}
        parts.update({f"{name} {key}[{entry}]": _kind(value) for entry, value in inside.items()})
    for index, group in enumerate(groups):
        parts.update({f"{name} group {index} {key}": "present" for key in group})
    return parts


def _kind(value: Any) -> str:
    # One class of mapping is as good as another: what is read by key stays readable.
    if isinstance(value, Mapping):
        return "mapping"
    return str(value.dtype) if torch.is_tensor(value) else type(value).__name__
