"""Edited copies of a trainer's own checkpoint, and what becomes of a run that gets them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pytest_cplife.adapter import LifecycleAdapter, TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.scenarios.order import Stage


class NothingToEdit(Exception):
    """The file has no such part; the message says so."""


Edit = Callable[[CheckpointView, Stage, TrainingRun], str]
"""Changes the payload in place and returns the name of what it touched."""


def offer_edits(
    stage: Stage,
    edits: Mapping[str, Edit],
    *,
    stepped: Collection[str] = (),
    apart: Collection[str] = (),
    load: Callable[[TrainingRun, Path], None] | None = None,
) -> None:
    """Offer each edited copy of the order's source to a run of its own.

    Notes, under the edit's name, the exception of each rank ("" where the load was accepted),
    under ``edited <name>`` what was touched, and the state before and after.

    Args:
        stepped: edits whose run makes a step before the load, where it may load then: what the
            load leaves alone is not a fresh start's then.
        apart: edits whose file only ranks other than 0 are given; rank 0 gets the source.
        load: how the run is given the file; by its own `load`, where nothing else is said.
    """
    give = load or _load
    source = stage.order.source
    assert source is not None
    why = _why_not(stage.adapter, source)
    if why:
        stage.recorder.absent(why, *edits)
        return
    for name, edit in edits.items():
        run = stage.start()
        path = stage.order.output.with_name(name.replace(" ", "-"))
        with stage.recorder.phase("edit"):
            if name in stepped and stage.adapter.live_load:
                stage.align(0)
                run.train(1)
            touched = _edit(stage, run, source, path, edit, name)
        if touched:
            if name in apart and stage.rank.rank == 0:
                path = source
            stage.recorder.moment(f"{name}: before", run)
            with stage.recorder.phase(f"offer a file with {name}"):
                outcome = offer(lambda path=path, run=run: give(run, path), run)  # type: ignore[misc]
                # A rank that refuses alone leaves the others in a collective: met here, not later.
                stage.barrier()
            stage.recorder.fact(name, outcome)
            stage.recorder.moment(f"{name}: after", run)
        stage.close(run)


def _load(run: TrainingRun, path: Path) -> None:
    run.load(path)


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


def _why_not(adapter: LifecycleAdapter, source: Path) -> str:
    """Why no edited copy of `source` can be made, "" where it can."""
    reads, writes = (
        getattr(type(adapter), name) is not getattr(LifecycleAdapter, name)
        for name in ("read_checkpoint", "write_checkpoint")
    )
    if reads and not writes:
        return (
            "the adapter reads files in a way of its own (read_checkpoint) and does not say how an"
            " edited one is written (write_checkpoint)"
        )
    if source.is_dir() and not reads:
        return "the checkpoint is a directory, which is not edited without read_checkpoint"
    return ""


def _edit(stage: Stage, run: TrainingRun, source: Path, path: Path, edit: Edit, name: str) -> str:
    # Every rank edits its own copy of the payload, which costs little and needs no agreement on
    # whether there is anything to edit; one writes it.
    view = stage.adapter.read_checkpoint(source)
    try:
        # The view shares the payload's own mappings, so that an edit of it is one of the file.
        touched = edit(view, stage, run)
        refusal = _write(stage, view, path)
    except NothingToEdit as reason:
        touched, refusal = "", str(reason)
    if refusal:
        stage.recorder.absent(refusal, name, f"{name}: before", f"{name}: after")
        return ""
    stage.recorder.fact(f"edited {name}", touched)
    return touched


def _write(stage: Stage, view: CheckpointView, path: Path) -> str:
    """Write the edited file on rank 0; on all ranks why it cannot be written, "" where it was."""
    told = path.with_name(f"{path.name}.cannot")
    if stage.rank.rank == 0:
        try:
            stage.adapter.write_checkpoint(view, path)
        except Exception as error:
            # Not every format can hold everything, DTensors for one.
            told.write_text(f"such a file cannot be written ({type(error).__name__}: {error})")
    stage.barrier()
    return told.read_text() if told.exists() else ""


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
