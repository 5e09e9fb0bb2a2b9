"""The journal: what each rank of a run recorded, readable also when the run ended badly."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.filing import FileRecord
from pytest_cplife.evidence.own_draws import OwnDraws
from pytest_cplife.evidence.snapshot import Snapshot, rng_digests, take_snapshot
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.evidence.trace import StepRecord, tracing


@dataclass(slots=True)
class RankJournal:
    """All that one rank recorded.

    Attributes:
        phases: seconds that each completed phase took.
        open_phase: the phase that was begun and not completed, "" where there is none.
        absent: by name of a moment or fact, why the adapter does not offer it.
        snapshots: by moment.
        steps: by stretch of training.
        losses: by stretch of training.
        files: by name of the checkpoint.
        facts: whatever else a scenario noted, by name.
    """

    phases: dict[str, float] = field(default_factory=dict)
    open_phase: str = ""
    absent: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    steps: dict[str, list[StepRecord]] = field(default_factory=dict)
    losses: dict[str, list[Any]] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Recorder:
    """Writes one rank's journal entry by entry, so that a crash loses nothing before it."""

    rank: int
    path: Path
    store: TensorStore

    def _write(self, kind: str, key: str, value: Any) -> None:
        # All of the entry or, where it cannot be pickled, nothing.
        entry = pickle.dumps((kind, key, value))
        with self.path.open("ab") as file:
            file.write(entry)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A named part of the scenario; an exception leaves it open in the journal."""
        self._write("begin", name, None)
        start = time.perf_counter()
        yield
        self._write("end", name, time.perf_counter() - start)

    def absent(self, why: str, *names: str) -> None:
        """The adapter does not offer what would have given the moments and facts `names`."""
        for name in names:
            self._write("absent", name, why)

    def moment(self, name: str, run: TrainingRun) -> None:
        """Take a snapshot under the name `name`."""
        self._write("snapshot", name, take_snapshot(name, self.rank, run, self.store))

    def train(self, stretch: str, run: TrainingRun, steps: int, *, values: bool = True) -> None:
        """Train under observation; the samples and scalars of the last step are noted too.

        So are the names of the random streams that were drawn from, and the states of generators
        of the trainer's own that were.

        Args:
            values: keep the first step's gradients, not only their digests.
        """
        before = rng_digests()
        with tracing(run, self.store, values=values) as trace, self.own_draws(stretch):
            losses = run.train(steps)
        moved = tuple(name for name, state in rng_digests().items() if before.get(name) != state)
        self._write("steps", stretch, trace.steps)
        self._write("losses", stretch, losses)
        self.fact(f"streams moved {stretch}", moved)
        self.samples(stretch, run)

    @contextmanager
    def own_draws(self, stretch: str) -> Iterator[None]:
        """Note from which states generators of the trainer's own draw inside the block."""
        with OwnDraws() as draws:
            yield
        self.fact(f"own draws {stretch}", tuple(sorted(draws.states)))

    def samples(self, stretch: str, run: TrainingRun) -> None:
        """Note the samples and scalars of the last step, where the run tells them."""
        for name in ("sample_ids", "control_scalars"):
            try:
                value = getattr(run, name)()
            except NotImplementedError:
                continue
            # A tuple of plain values, whatever sequence or mapping the trainer keeps them in.
            plain = sorted(value.items()) if isinstance(value, Mapping) else list(map(int, value))
            self._write("fact", f"{name} {stretch}", tuple(plain))

    def file(self, name: str, record: FileRecord) -> None:
        self._write("file", name, record)

    def fact(self, name: str, value: Any) -> None:
        """Note a plain, picklable value."""
        self._write("fact", name, value)


def read_journal(path: Path) -> RankJournal:
    """Read what a rank wrote; an entry that was cut off ends it."""
    journal = RankJournal()
    tables: dict[str, dict[str, Any]] = {
        "snapshot": journal.snapshots,
        "steps": journal.steps,
        "losses": journal.losses,
        "file": journal.files,
        "fact": journal.facts,
    }
    if not path.exists():
        return journal
    with path.open("rb") as file:
        while True:
            try:
                kind, key, value = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return journal
            if kind == "begin":
                journal.open_phase = key
            elif kind == "end":
                journal.open_phase = ""
                journal.phases[key] = value
            elif kind == "absent":
                journal.open_phase = ""
                journal.absent[key] = value
            else:
                tables[kind][key] = value
