"""Making runs: each at most once per session, each on the world that its kind asks for."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.journal import RankJournal, read_journal
from pytest_cplife.evidence.run import RunEvidence, RunFailure
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.launchers.base import Launcher, World, WorldFailure
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.scenarios.order import Order
from pytest_cplife.scenarios.table import RUNS, RunKind
from pytest_cplife.settings import Settings


class Runner:
    """Makes the runs that rules ask for and keeps their evidence."""

    def __init__(
        self, settings: Settings, adapter: type[LifecycleAdapter], launcher: Launcher
    ) -> None:
        self._settings = settings
        self._adapter = adapter
        self._launcher = launcher
        self._store = settings.workdir / "tensors"
        self._store.mkdir(parents=True, exist_ok=True)
        launcher.check_folder(self._store)
        self._assembler = Assembler(TensorStore(self._store))
        self._made: dict[tuple[str, MeshSpec | None, MeshSpec | None], RunEvidence] = {}

    def run(self, name: str, spec: MeshSpec | None, partner: MeshSpec | None = None) -> RunEvidence:
        """The evidence of the run `name` on `spec`; made when first asked for.

        Args:
            partner: the mesh whose checkpoint is read, for the runs that read another mesh's.
        """
        kind = RUNS[name]
        key = (
            name,
            None if kind.per_session else spec,
            partner if kind.partner else None,
        )
        if key not in self._made:
            self._made[key] = self._make(kind, spec, partner)
        return self._made[key]

    def output(self, name: str, spec: MeshSpec | None) -> Path:
        """Where the run `name` on `spec` saves to."""
        return self._order(RUNS[name], spec).output

    def source_of(
        self, kind: RunKind, spec: MeshSpec | None, partner: MeshSpec | None
    ) -> MeshSpec | None:
        """The mesh on which the checkpoint that a run reads is saved."""
        return partner if kind.partner else spec

    def _make(self, kind: RunKind, spec: MeshSpec | None, partner: MeshSpec | None) -> RunEvidence:
        source = second = None
        for first in filter(None, (kind.presumes, kind.after)):
            origin = self.source_of(kind, spec, partner)
            # Of two runs that each read the partner's, the second reads what came of this mesh's.
            other = spec if kind.partner else partner
            before = self.run(first, origin, other)
            output = self._order(RUNS[first], origin, other).output
            if not before.completed(kind.source_phase) or not output.exists():
                return RunEvidence(kind.name, spec, (), None, self._assembler, held_back=first)
            source = output if first == kind.after else None
        if kind.also_after:
            self.run(kind.also_after, spec)
            second = self._order(RUNS[kind.also_after], spec).output
        order = self._order(kind, spec, partner, source, second)
        if kind.world == "serial":
            order = order.serially()
        return self._execute(kind, order, spec)

    def _order(
        self,
        kind: RunKind,
        spec: MeshSpec | None,
        partner: MeshSpec | None = None,
        source: Path | None = None,
        second: Path | None = None,
    ) -> Order:
        place = "session" if kind.per_session else str(spec)
        name = f"{kind.name}-{partner}" if kind.partner else kind.name
        return Order(
            adapter=self._settings.adapter,
            spec=spec,
            folder=self._settings.workdir / place / name,
            store=self._store,
            steps=self._steps(),
            seed=self._settings.seed,
            source=source,
            second_source=second,
            golden=self._settings.golden,
        )

    def _steps(self) -> tuple[int, int]:
        """Steps before and after the save, both up to an epoch's end where saves need one.

        The resumed run saves again after its last step.
        """
        before, after = self._settings.steps
        if self._adapter.save_points == "epoch_end":
            epoch = self._adapter.steps_per_epoch or 1
            return -(-before // epoch) * epoch, -(-after // epoch) * epoch
        return before, after

    def _world(self, kind: RunKind, spec: MeshSpec | None) -> World:
        if kind.world != "mesh":
            return self._launcher.serial_world(kind.lane)
        assert spec is not None
        bare = self._adapter.initialises_process_group
        return self._launcher.world(spec.world_size, kind.lane, bare=bare)

    def _execute(self, kind: RunKind, order: Order, spec: MeshSpec | None) -> RunEvidence:
        # A world that cannot be had (a machine that is too small) leaves nothing behind, so that
        # it is told again to the next rule that asks.
        world = self._world(kind, spec)
        order.prepare()
        failure = None
        try:
            seconds = max(kind.patience * self._settings.timeout, kind.at_least)
            world.run(kind.script, order, timeout=seconds)
        except WorldFailure as error:
            failure = error
        journals = tuple(read_journal(order.journal(rank)) for rank in range(world.size))
        if failure is not None and _was_meant(failure, journals):
            failure = None
        return RunEvidence(
            name=kind.name,
            spec=spec,
            ranks=journals,
            failure=None if failure is None else _explain(failure, journals),
            assembler=self._assembler,
        )


def _was_meant(failure: WorldFailure, journals: tuple[RankJournal, ...]) -> bool:
    """Whether the rank that died is the one that the script had sentenced, as it noted before.

    Whatever becomes of the others then, its death is the cause.
    """
    return any(
        one.kind == "killed" and journals[one.rank].facts.get("doomed") for one in failure.failures
    )


def _explain(failure: WorldFailure, journals: tuple[RankJournal, ...]) -> RunFailure:
    primary = failure.primary
    # A rank that hangs or dies with its journal closed was between phases; another rank may know.
    phases = [journals[primary.rank].open_phase, *(journal.open_phase for journal in journals)]
    # Of a rank that waits for another one: what the other has raised, in a save that was watched.
    raised = [(rank, journal.facts.get("raised")) for rank, journal in enumerate(journals)]
    causes = [f"rank {rank} raised {text} in the save, and " for rank, text in raised if text]
    return RunFailure(
        phase=next((phase for phase in phases if phase), ""),
        ranks=tuple(f.rank for f in failure.failures if not f.secondary),
        headline="".join(causes[:1] if primary.kind != "raised" else ()) + primary.headline(),
        detail=str(failure),
    )
