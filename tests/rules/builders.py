"""Evidence made by hand: runs, moments and records that no trainer has been through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.filing import FileRecord
from pytest_cplife.evidence.journal import RankJournal
from pytest_cplife.evidence.records import GroupRecord, Placement, Record, TensorRecord, ValueRecord
from pytest_cplife.evidence.run import RunEvidence, RunFailure
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import Case, Declared, Noise
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.registry import get_rule
from tests.evidence import layouts

Columns = Mapping[str, Sequence[Any]]
VALUE = ValueRecord


@dataclass
class Lab:
    """Makes evidence of runs on one mesh."""

    store: TensorStore
    spec: str = "dp=2"
    assembler: Assembler = field(init=False)

    def __post_init__(self) -> None:
        self.assembler = Assembler(self.store)

    @property
    def ranks(self) -> int:
        return MeshSpec.parse(self.spec).world_size

    def on(self, spec: str) -> Lab:
        """The same store, another mesh."""
        return Lab(self.store, spec)

    def plain(self, *values: Any, **changes: Any) -> list[TensorRecord]:
        """A plain tensor on every rank; of one value, or of one per rank."""
        tensors = [torch.as_tensor(value) for value in values]
        tensors = tensors * self.ranks if len(tensors) == 1 else tensors
        return [layouts.plain(tensor, self.store, **changes) for tensor in tensors]

    def sharded(
        self, value: Any, *placements: Placement, spec: str = "", **changes: Any
    ) -> list[TensorRecord]:
        """A DTensor, cut along the first dimension where no placements are given."""
        spec = spec or self.spec
        if not placements:
            count = len(MeshSpec.parse(spec).dims)
            placements = (layouts.shard(0), *[layouts.replicate()] * (count - 1))
        return layouts.cut(torch.as_tensor(value), self.store, spec, *placements, **changes)

    def replicated(self, value: Any, **changes: Any) -> list[TensorRecord]:
        count = len(MeshSpec.parse(self.spec).dims)
        return self.sharded(value, *[layouts.replicate()] * count, **changes)

    def other_bytes(
        self, records: Sequence[TensorRecord], rank: int, value: Any
    ) -> list[TensorRecord]:
        """The same, but for what one rank holds."""
        changed = list(records)
        changed[rank] = replace(records[rank], digest=self.store.put(torch.as_tensor(value)))
        return changed

    def snapshots(
        self,
        moment: str = "now",
        *,
        parameters: Columns | None = None,
        buffers: Columns | None = None,
        state: Mapping[str, Columns] | None = None,
        ema: Columns | None = None,
        groups: Sequence[GroupRecord] | None = None,
        schedulers: Sequence[Mapping[str, Record]] = (),
        rng: Sequence[Mapping[str, str]] | None = None,
        step: int = 3,
        **changes: Any,
    ) -> list[Snapshot]:
        """What each rank sees; columns give one record per rank, None for a rank without."""
        parameters = parameters if parameters is not None else {"w": self.sharded([1.0, 2.0, 3.0])}
        default = GroupRecord(0, 0, tuple(parameters), {"lr": VALUE("float", "0.1")})
        made = []
        for rank in range(self.ranks):
            seen = dict(_of_rank(parameters, rank))
            for position, (name, record) in enumerate(seen.items(), start=1):
                if not record.identity:
                    seen[name] = replace(record, identity=position, alias=position)
            snapshot = Snapshot(
                moment=moment,
                rank=rank,
                parameters=seen,
                buffers=dict(_of_rank(buffers or {}, rank)),
                persistent=(*parameters, *(buffers or {})),
                optimizer_state={
                    name: entries
                    for name, columns in (state or {}).items()
                    if (entries := dict(_of_rank(columns, rank)))
                },
                state_names_stray=(),
                groups=tuple(groups) if groups is not None else (default,),
                schedulers=tuple(dict(s) for s in schedulers),
                ema=None if ema is None else dict(_of_rank(ema, rank)),
                rng=dict(rng[rank]) if rng else {"torch": f"state {rank}"},
                seed=rank,
                counters={"global_step": step, "epoch": 0},
                extra=None,
                training=True,
            )
            made.append(replace(snapshot, **changes))
        return made

    def run(
        self,
        name: str,
        moments: Mapping[str, Sequence[Snapshot]] | None = None,
        *,
        facts: Mapping[str, Sequence[Any]] | None = None,
        steps: Mapping[str, Sequence[Sequence[StepRecord]]] | None = None,
        losses: Mapping[str, Sequence[Sequence[float]]] | None = None,
        files: Mapping[str, FileRecord] | None = None,
        phases: Sequence[str] = (),
        absent: Mapping[str, str] | None = None,
        failure: RunFailure | None = None,
        held_back: str = "",
        ranks: int | None = None,
    ) -> RunEvidence:
        """A run; `facts`, `steps` and `losses` give one value per rank."""
        journals = [
            RankJournal(
                phases=dict.fromkeys(phases, 0.1),
                snapshots={moment: seen[rank] for moment, seen in (moments or {}).items()},
                facts={key: values[rank] for key, values in (facts or {}).items()},
                steps={key: list(values[rank]) for key, values in (steps or {}).items()},
                losses={key: list(values[rank]) for key, values in (losses or {}).items()},
                files=dict(files or {}),
                absent=dict(absent or {}),
            )
            for rank in range(self.ranks if ranks is None else ranks)
        ]
        return RunEvidence(
            name=name,
            spec=MeshSpec.parse(self.spec),
            ranks=() if held_back else tuple(journals),
            failure=failure,
            assembler=self.assembler,
            held_back=held_back,
        )

    def case(
        self,
        *runs: RunEvidence,
        noise: Mapping[tuple[str, str], float] | None = None,
        partner: str = "",
        **declared: Any,
    ) -> Case:
        return Case(
            spec=MeshSpec.parse(self.spec),
            declared=Declared(**declared),
            runs={run.name: run for run in runs},
            noise=Noise(noise or {}),
            partner=MeshSpec.parse(partner) if partner else None,
        )


def _of_rank(columns: Columns, rank: int) -> Iterator[tuple[str, Any]]:
    for name, records in columns.items():
        if records[rank] is not None:
            yield name, records[rank]


def values(record: Record, ranks: int = 2) -> list[Record]:
    """The same value on every rank."""
    return [record] * ranks


def step_of(gradients: Mapping[str, TensorRecord], **changes: Any) -> StepRecord:
    """A step of the first optimizer."""
    lr: dict[str, Record] = {"lr": VALUE("float", "0.1")}
    return replace(StepRecord(0, dict(gradients), (), (lr,), 0), **changes)


def file_of(model: Mapping[str, Record], **changes: Any) -> FileRecord:
    """A checkpoint file that holds `model` and nothing else."""
    record = FileRecord(
        model=dict(model),
        prefix="",
        versions={},
        optimizers=(),
        ema=None,
        counters={},
        dtensors=(),
        storages=(),
        bytes_on_disk=100,
    )
    return replace(record, **changes)


def findings(rule: str, case: Case) -> list[Finding]:
    return list(get_rule(rule).check(case))


def violations(rule: str, case: Case) -> list[Violation]:
    return [f for f in findings(rule, case) if isinstance(f, Violation)]


def subjects(rule: str, case: Case) -> list[str]:
    """What broke the rule, by name."""
    return [violation.subject for violation in violations(rule, case)]


def measured(found: Sequence[Finding]) -> list[Measurement]:
    return [f for f in found if isinstance(f, Measurement)]
