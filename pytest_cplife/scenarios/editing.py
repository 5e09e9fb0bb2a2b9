"""Edited copies of a trainer's own checkpoint, and what becomes of a run that gets them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView, find_parts
from pytest_cplife.scenarios.order import Stage


class NothingToEdit(Exception):
    """The file has no such part; the message says so."""


Edit = Callable[[CheckpointView, Stage, TrainingRun], str]
"""Changes the payload in place and returns the name of what it touched."""


def offer_edits(stage: Stage, edits: dict[str, Edit]) -> None:
    """Offer each edited copy of the order's source to a run of its own.

    Notes, under the edit's name, the exception of each rank ("" where the load was accepted),
    under ``edited <name>`` what was touched, and the state before and after.
    """
    source = stage.order.source
    assert source is not None
    if source.is_dir():
        stage.recorder.absent("the checkpoint is a directory, which is not edited", *edits)
        return
    for name, edit in edits.items():
        run = stage.start()
        path = stage.order.output.with_name(name.replace(" ", "-"))
        with stage.recorder.phase("edit"):
            touched = _edit(stage, run, source, path, edit, name)
        if touched:
            stage.barrier()
            stage.recorder.moment(f"{name}: before", run)
            with stage.recorder.phase(f"offer a file with {name}"):
                outcome = offer(lambda path=path, run=run: run.load(path), run)  # type: ignore[misc]
                # A rank that refuses alone leaves the others in a collective: met here, not later.
                stage.barrier()
            stage.recorder.fact(name, outcome)
            stage.recorder.moment(f"{name}: after", run)
        stage.close(run)


def offer(load: Callable[[], None], run: TrainingRun) -> str:
    """Load and make ready; the exception as text, "" where there was none."""
    try:
        load()
        run.ready()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # torch's CheckpointException, which a failed sharded load raises, is no Exception.
        return f"{type(error).__name__}: {error}"
    return ""


class _Listener(logging.Handler):
    def __init__(self, told: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(record.getMessage())


@contextmanager
def heard() -> Iterator[list[str]]:
    """What warnings and log records (of level WARNING and above) say inside the block."""
    told: list[str] = []
    listener = _Listener(told)
    logging.getLogger().addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield told
        told += [str(warning.message) for warning in caught]
    finally:
        logging.getLogger().removeHandler(listener)


def _edit(stage: Stage, run: TrainingRun, source: Path, path: Path, edit: Edit, name: str) -> str:
    # Every rank edits its own copy of the payload, which costs little and needs no agreement on
    # whether there is anything to edit; one writes it.
    payload = torch.load(source, map_location="cpu", weights_only=False)
    module = stage.adapter.build_serial_model()
    try:
        # The view shares the payload's own mappings, so that an edit of it is one of the file.
        touched = edit(find_parts(payload, list(module.state_dict())), stage, run)
    except NothingToEdit as reason:
        stage.recorder.absent(str(reason), name, f"{name}: before", f"{name}: after")
        return ""
    stage.recorder.fact(f"edited {name}", touched)
    if stage.rank.rank == 0:
        torch.save(payload, path)
    return touched


def weights(view: CheckpointView) -> list[str]:
    """Names of tensors with at least one dimension that occur under one name only."""
    names = [key for key, value in view.model.items() if torch.is_tensor(value) and value.ndim]
    pointers = [view.model[name].data_ptr() for name in names]
    return [n for n, pointer in zip(names, pointers, strict=True) if pointers.count(pointer) == 1]


def editable(mapping: Any) -> MutableMapping[str, Any]:
    """The mapping as one that can be changed.

    Raises:
        NothingToEdit: it cannot be.
    """
    if not isinstance(mapping, MutableMapping):
        raise NothingToEdit(f"the file keeps it in a {type(mapping).__name__}")
    return mapping
