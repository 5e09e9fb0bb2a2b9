"""Offering a trainer checkpoints that it must refuse, and earlier formats that it may know."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView, find_parts
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, Stage, set_stage

Edit = Callable[[CheckpointView, Any], str]


def refusing(rank: Rank, order: Order) -> None:
    """Load files in which a model's weight is missing, of another size, or unknown.

    Each is offered to a run of its own, since a refused load may leave anything behind.
    """
    stage = set_stage(rank, order)
    assert order.source is not None
    if order.source.is_dir():
        stage.recorder.absent("the checkpoint is a directory, which is not edited", *EDITS)
        return
    for name, edit in EDITS.items():
        path = order.output.with_name(name.replace(" ", "-"))
        if rank.rank == 0:
            with stage.recorder.phase("tamper"):
                stage.recorder.fact(f"edited {name}", _tamper(stage, order.source, path, edit))
        run = stage.start()
        stage.barrier()
        stage.recorder.moment(f"{name}: before", run)
        with stage.recorder.phase(f"offer a file with {name}"):
            outcome = _offer(run, path)
            # A rank that refuses alone leaves the others in a collective: met here, not later.
            stage.barrier()
        stage.recorder.fact(name, outcome)
        stage.recorder.moment(f"{name}: after", run)
        stage.close(run)


def _offer(run: TrainingRun, path: Path) -> str:
    try:
        run.load(path)
        run.ready()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _tamper(stage: Stage, source: Path, path: Path, edit: Edit) -> str:
    payload = torch.load(source, map_location="cpu", weights_only=False)
    module = stage.adapter.build_serial_model()
    # The view shares the payload's own mappings, so that an edit of it is an edit of the file.
    text = edit(find_parts(payload, list(module.state_dict())), module)
    torch.save(payload, path)
    return text


def _missing(view: CheckpointView, module: torch.nn.Module) -> str:
    name = _weights(view)[-1]
    del view.model[name]  # type: ignore[attr-defined]
    return name


def _resized(view: CheckpointView, module: torch.nn.Module) -> str:
    name = max(_weights(view), key=lambda key: view.model[key].ndim)
    tensor = view.model[name]
    view.model[name] = torch.cat([tensor, tensor[:1]])  # type: ignore[index]
    return name


def _unknown(view: CheckpointView, module: torch.nn.Module) -> str:
    name = "a_module_of_another_architecture.weight"
    view.model[name] = copy.deepcopy(view.model[_weights(view)[0]])  # type: ignore[index]
    return name


def _weights(view: CheckpointView) -> list[str]:
    """Names of tensors with at least one dimension that occur under one name only."""
    names = [key for key, value in view.model.items() if torch.is_tensor(value) and value.ndim]
    pointers = [view.model[name].data_ptr() for name in names]
    return [n for n, pointer in zip(names, pointers, strict=True) if pointers.count(pointer) == 1]


EDITS: dict[str, Edit] = {
    "a missing weight": _missing,
    "a weight of another size": _resized,
    "an unknown weight": _unknown,
}
"""By name: what is wrong with a file, as an edit of its view that returns the key it touched."""


def phases() -> Iterator[str]:
    """The phases of `refusing` that depend on the edits."""
    for name in EDITS:
        yield f"offer a file with {name}"
