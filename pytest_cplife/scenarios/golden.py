"""Golden archives: loading those that were given, and recording one of today."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import torch

from pytest_cplife import __version__
from pytest_cplife.adapter import LifecycleAdapter, TrainingRun
from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.evidence.golden import (
    CHECKPOINT,
    Manifest,
    adapter_name,
    archives_in,
    content_of,
    keep_archive,
)
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.evidence.summary import digests
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import offer
from pytest_cplife.scenarios.order import Order, Stage, set_stage


class CannotRecord(Exception):
    """There is nothing that would be worth keeping; the message says why."""


def golden(rank: Rank, order: Order) -> None:
    """Load every archive of the order's folder, each into a run of its own."""
    stage = set_stage(rank, order)
    if order.golden is None:
        stage.recorder.absent("no golden archives were given", "archives")
        return
    archives = archives_in(order.golden)
    stage.recorder.fact("adapter", adapter_name(order.adapter))
    stage.recorder.fact("archives", archives)
    for archive in archives:
        path = order.golden / archive.name / CHECKPOINT
        intact = rank.rank != 0 or content_of(path) == archive.content
        stage.recorder.fact(f"{archive.name}: intact", intact)
        run = stage.start()
        with stage.recorder.phase("load a golden archive"):
            outcome = offer(lambda path=path, run=run: run.load(path), run)  # type: ignore[misc]
            # A rank that refuses alone leaves the others in a collective: met here, not later.
            stage.barrier()
        stage.recorder.fact(f"{archive.name}: refused", outcome)
        if not outcome:
            stage.recorder.moment(archive.name, run)
            _go_on(stage, run, archive)
        stage.close(run)


def _go_on(stage: Stage, run: TrainingRun, archive: Manifest) -> None:
    """Make the steps whose losses the archive has, where they can be the same."""
    spec, name = stage.order.spec, f"{archive.name}: losses"
    if not archive.losses:
        stage.recorder.absent("the archives were recorded without the losses that came after", name)
    elif spec is None or (archive.mesh, archive.seed) != (spec.option, stage.order.seed):
        why = "on another mesh, or with another seed, than that of an archive losses differ"
        stage.recorder.absent(why, name)
    else:
        with stage.recorder.phase("go on from a golden archive"):
            stage.align(1)
            stage.recorder.train(f"{archive.name}: next", run, 1)
            stage.align(2)
            if len(archive.losses) > 1:
                stage.recorder.train(f"{archive.name}: rest", run, len(archive.losses) - 1)


def record(
    folder: Path,
    checkpoint: Path,
    adapter: type[LifecycleAdapter],
    ref: str,
    saving: RunEvidence,
    files: RunEvidence,
    seed: int,
) -> tuple[Path, bool]:
    """Keep `checkpoint` as an archive in `folder`; say where, and whether it is a new one.

    Args:
        saving: the run that saved it, and
        files: the one that read it.
        seed: of both.

    Raises:
        CannotRecord: one of them did not get that far.
    """
    for run, phase in ((saving, "save"), (files, "read saved")):
        if not run.completed(phase):
            why = run.failure.headline if run.failure else "there is no checkpoint"
            raise CannotRecord(f"{phase!r} did not complete: {why}")
    state = saving.at("before save")
    try:
        full = digests(state, saving.assembler)
    except CannotAssemble as problem:
        raise CannotRecord(str(problem)) from None
    manifest = Manifest(
        name="",
        recorded=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        adapter=adapter_name(ref),
        framework=adapter.framework,
        checkpoint_format=adapter.checkpoint_format,
        mesh="" if saving.spec is None else saving.spec.option,
        versions={"pytest-cplife": __version__, "torch": str(torch.__version__)},
        content=content_of(checkpoint),
        counters=dict(state.ranks[0].counters),
        digests=full,
        structure=files.fact("structure")[0],
        losses=tuple(map(float, saving.losses(*_stretches(saving))[0])),
        seed=seed,
    )
    for known in archives_in(folder) if folder.is_dir() else ():
        if known.says_the_same(manifest):
            return folder / known.name, False
    return keep_archive(folder, checkpoint, manifest), True


def _stretches(saving: RunEvidence) -> list[str]:
    """The stretches after the save that the run got to the end of."""
    names = ("next", "rest")
    return [name for name in names if all(name in journal.losses for journal in saving.ranks)]
