"""Living through the chapters of a plan on real ranks, each chapter with the same past once.

Plans share their beginnings: two pairs of meshes that save alike, and nearly all that shrinking
tries. What a run does is settled by its past, so what was lived is looked up.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.evidence.journal import RankJournal, read_journal
from pytest_cplife.evidence.run import Moment
from pytest_cplife.fuzz.life import Life, live
from pytest_cplife.fuzz.plans import SAVES, Step
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.launchers.base import WorldFailure
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation
from pytest_cplife.scenarios.order import Order

KEPT = 40
"""Chapters that are known at a time, with their journals in memory and checkpoints on disk."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One run: where it is, what it does, and the step that it comes from (None: a fresh start)."""

    mesh: MeshSpec
    steps: tuple[Step, ...]
    source: Step | None = None


Past = tuple[Chapter, ...]
"""The chapters up to one, and that one."""


@dataclass(frozen=True, slots=True)
class Lived:
    """What came of a chapter.

    Attributes:
        journals: of the ranks.
        failure: how it ended, where it did not end well.
        slots: where all checkpoints of its past and its own are, or were to be written.
        folders: what it has on disk.
    """

    journals: tuple[RankJournal, ...]
    failure: WorldFailure | None
    slots: Mapping[int, Path]
    folders: tuple[Path, ...] = ()

    @property
    def moments(self) -> dict[str, Moment]:
        """Every moment that all ranks have come to."""
        tables = [journal.snapshots for journal in self.journals]
        return {
            name: Moment("plan", name, tuple(table[name] for table in tables))
            for name in tables[0]
            if all(name in table for table in tables)
        }

    def wrote(self, step: Step, name: str) -> bool:
        """Whether the saving `step`, whose moment is `name`, says that it wrote its checkpoint."""
        return step.operation != "crash" or self.journals[0].facts[name] == "saved"

    @property
    def phase(self) -> str:
        """The operation in which it ended, "" where it was between two."""
        assert self.failure is not None
        first = self.journals[self.failure.primary.rank].open_phase
        return first or next((j.open_phase for j in self.journals if j.open_phase), "")

    @property
    def crashed(self) -> bool:
        """Whether the ranks' own error ended it while one of them could not write.

        That is what such an error is there for; to wait for one another without end is not.
        """
        return (
            self.failure is not None
            and self.phase == "crash"
            and self.failure.primary.kind != "hung"
        )

    @property
    def violation(self) -> Violation:
        """Its end, for a reader."""
        assert self.failure is not None
        first = self.failure.primary
        return Violation(
            subject=self.phase or "life",
            expected="completes on every rank",
            observed=first.headline(),
            moment=f"{self.phase} {first.kind} {first.type_name}".strip(),
            ranks=tuple(f.rank for f in self.failure.failures if not f.secondary),
            detail=str(self.failure),
        )


class Lives:
    """Lives chapters for one adapter."""

    def __init__(self, stage: FuzzStage, adapter: type[LifecycleAdapter], store: Path) -> None:
        self._stage = stage
        self._adapter = adapter
        self._store = store
        self._known: OrderedDict[Past, Lived] = OrderedDict()

    @property
    def unit(self) -> int:
        """Optimizer steps that a step of ``train`` stands for: see :class:`Life`."""
        adapter = self._adapter
        return (adapter.steps_per_epoch or 1) if adapter.save_points == "epoch_end" else 1

    def of(self, past: Past) -> Lived:
        """What came of the last chapter of `past`."""
        if past not in self._known:
            before = self.of(past[:-1]).slots if len(past) > 1 else {}
            self._known[past] = self._live(past[-1], before)
            if len(self._known) > KEPT:
                self._forget(next(iter(self._known)))
        self._known.move_to_end(past)
        return self._known[past]

    def _forget(self, past: Past) -> None:
        """Give back what a chapter has, and those that came after it: they load what it saved."""
        for known in [known for known in self._known if known[: len(past)] == past]:
            for folder in self._known.pop(known).folders:
                shutil.rmtree(folder, ignore_errors=True)

    def alone(self, chapter: Chapter, *, nudged: bool = False) -> Lived:
        """What comes of a chapter without a past, lived now even if it was before."""
        return self._live(chapter, {}, nudged)

    def _live(self, chapter: Chapter, before: Mapping[int, Path], nudged: bool = False) -> Lived:
        folder = self._stage.new_folder()
        written = [step.slot for step in chapter.steps if step.operation in SAVES]
        # Paths of their own: nothing is asked here of a save over an earlier one.
        slots = {**before, **{slot: folder / f"slot{slot}" for slot in written}}
        source = chapter.source
        order = Order(
            adapter=self._stage.adapter,
            spec=chapter.mesh,
            folder=self._stage.new_folder(),
            store=self._store,
            steps=self._stage.steps,
            seed=self._stage.seed,
            source=None if source is None else slots[source.slot],
        )
        order.prepare()
        order.store.mkdir(exist_ok=True)
        sharded = source is not None and source.sharded
        life = Life(order, sharded, chapter.steps, slots, self.unit, nudged)
        failure = None
        bare = self._adapter.initialises_process_group
        try:
            self._stage.run(chapter.mesh, live, life, bare=bare)
        except WorldFailure as error:
            failure = error
        size = chapter.mesh.world_size
        journals = tuple(read_journal(order.journal(rank)) for rank in range(size))
        return Lived(journals, failure, slots, (folder, order.folder))
