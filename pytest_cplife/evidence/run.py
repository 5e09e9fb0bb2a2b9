"""The evidence of one run: what all its ranks recorded, put side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.filing import FileRecord
from pytest_cplife.evidence.journal import RankJournal
from pytest_cplife.evidence.records import GroupRecord, Record, TensorRecord
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.mesh import MeshSpec


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Where and how a run ended badly.

    Attributes:
        phase: the phase that the first failing rank was in.
        ranks: the ranks that failed of themselves, not those dragged along.
        headline: one line.
        detail: tracebacks and what else the launcher knows.
    """

    phase: str
    ranks: tuple[int, ...]
    headline: str
    detail: str


class Unanswered(Exception):
    """The evidence does not reach as far as a rule asks.

    Attributes:
        run: name of the run.
        wanted: the moment, file or fact that is not there.
        not_offered: why the adapter does not offer it, "" where it was prevented by a failure.
    """

    def __init__(self, run: str, wanted: str, not_offered: str = "") -> None:
        super().__init__(f"{run}: {wanted}")
        self.run = run
        self.wanted = wanted
        self.not_offered = not_offered


Columns = dict[str, list[Record]]
TensorColumns = dict[str, list[TensorRecord]]


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a run over all its ranks."""

    run: str
    name: str
    ranks: tuple[Snapshot, ...]

    @property
    def label(self) -> str:
        return f"{self.run}: {self.name}"

    @property
    def parameters(self) -> TensorColumns:
        """For each FQN that every rank has, its record on each rank."""
        return _columns([s.parameters for s in self.ranks])

    @property
    def buffers(self) -> TensorColumns:
        return _columns([s.buffers for s in self.ranks])

    @property
    def ema(self) -> TensorColumns:
        return _columns([s.ema or {} for s in self.ranks])

    @property
    def optimizer_state(self) -> Columns:
        """The same for every entry of the optimizer state, named ``fqn[entry]``."""
        return _columns([_flat_state(s.optimizer_state) for s in self.ranks])

    @property
    def optimizer_tensors(self) -> TensorColumns:
        return {
            name: [r for r in records if isinstance(r, TensorRecord)]
            for name, records in self.optimizer_state.items()
            if all(isinstance(r, TensorRecord) for r in records)
        }

    @property
    def groups(self) -> tuple[GroupRecord, ...]:
        return self.ranks[0].groups

    def key_sets(self, what: Callable[[Snapshot], Iterable[str]]) -> list[set[str]]:
        return [set(what(snapshot)) for snapshot in self.ranks]


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """All that is known of one run.

    Attributes:
        name: its name in the scenario table.
        spec: its mesh, None for a serial run.
        ranks: journals in rank order.
        failure: how it ended, where it ended badly.
        held_back: the run that had to come first and did not go far enough, "" where none.
        assembler: for full tensors.
    """

    name: str
    spec: MeshSpec | None
    ranks: tuple[RankJournal, ...]
    failure: RunFailure | None
    assembler: Assembler
    held_back: str = ""

    def at(self, moment: str) -> Moment:
        """The state at `moment` on all ranks.

        Raises:
            Unanswered: a rank did not get there.
        """
        snapshots = [journal.snapshots.get(moment) for journal in self.ranks]
        found = tuple(s for s in snapshots if s is not None)
        if not self.ranks or len(found) < len(snapshots):
            raise self._unanswered(moment)
        return Moment(self.name, moment, found)

    def steps(self, *stretches: str) -> list[list[StepRecord]]:
        """The optimizer steps of consecutive stretches of training, per rank."""
        return [
            [step for stretch in stretches for step in steps[stretch]]
            for steps in self._tables(lambda j: j.steps, stretches)
        ]

    def losses(self, *stretches: str) -> list[list[Any]]:
        """The losses of consecutive stretches of training, per rank."""
        return [
            [loss for stretch in stretches for loss in losses[stretch]]
            for losses in self._tables(lambda j: j.losses, stretches)
        ]

    def all_losses(self) -> list[list[Any]]:
        """Every loss of the run in the order of its steps, per rank."""
        return [[x for losses in j.losses.values() for x in losses] for j in self.ranks]

    def file(self, name: str) -> FileRecord:
        """The checkpoint `name` as rank 0 read it."""
        if not self.ranks or name not in self.ranks[0].files:
            raise self._unanswered(name)
        return self.ranks[0].files[name]

    def fact(self, name: str) -> list[Any]:
        """A noted value per rank."""
        return [table[name] for table in self._tables(lambda j: j.facts, (name,))]

    def completed(self, phase: str) -> bool:
        return bool(self.ranks) and all(phase in journal.phases for journal in self.ranks)

    def not_offered(self, wanted: str) -> str:
        """Why the adapter does not offer what would have given `wanted`, "" where it does."""
        for journal in self.ranks:
            if journal.absent:
                return journal.absent.get(wanted) or next(iter(journal.absent.values()))
        return ""

    def _tables(
        self, which: Callable[[RankJournal], Mapping[str, Any]], names: Iterable[str]
    ) -> list[Mapping[str, Any]]:
        tables = [which(journal) for journal in self.ranks]
        for name in names:
            if not tables or any(name not in table for table in tables):
                raise self._unanswered(name)
        return tables

    def _unanswered(self, wanted: str) -> Unanswered:
        return Unanswered(self.name, wanted, "" if self.failure else self.not_offered(wanted))


def _columns(tables: list[Any]) -> dict[str, list[Any]]:
    return {
        name: [table[name] for table in tables]
        for name in tables[0]
        if all(name in table for table in tables)
    }


def _flat_state(state: Mapping[str, Mapping[str, Record]]) -> dict[str, Record]:
    return {
        f"{name}[{entry}]": record
        for name, entries in state.items()
        for entry, record in entries.items()
    }
