"""PLACE: how ranks start and where tensors live."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.assemble import geometry_problem
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_RUN = ("uninterrupted",)


@rule(
    "PLACE-01",
    "a run starts on the mesh",
    statement="start() completes on every rank of every declared mesh.",
    why="A topology that is declared but cannot start is no topology.",
    cause="A dimension name or size the wrapping code does not know, or ranks that take different"
    " branches and wait for each other.",
    runs=_RUN,
)
def starts(case: Case) -> Iterator[Finding]:
    yield from completes(case, "PLACE-01", *_RUN)


@rule(
    "PLACE-02",
    "trainable parameters are dtensors",
    statement="Every trainable parameter is a DTensor, unless the adapter declares it plain.",
    why="A plain parameter among DTensors gets no reduced gradient, and replicas part silently.",
    cause="A module added after the wrapping code was written, or a parameter re-created after it.",
    runs=_RUN,
    events=("trainable parameters",),
)
def are_dtensors(case: Case) -> Iterator[Finding]:
    for moment in ("start", "end"):
        state = case["uninterrupted"].at(moment)
        for name, records in state.parameters.items():
            bad = [r for r, x in enumerate(records) if x.requires_grad and x.kind != "dtensor"]
            if bad and not case.declared.is_plain(name):
                seen = records[bad[0]].type_name
                yield Violation(name, "DTensor", seen, state.label, ranks=tuple(bad))


@rule(
    "PLACE-03",
    "ranks agree on every tensor",
    statement="All ranks have the same parameters and buffers, of the same kind, global shape,"
    " dtype, requires_grad, mesh shape and placements.",
    why="Ranks that disagree enter different collectives: a hang, or bytes read as other bytes.",
    cause="Wrapping code that depends on the rank, or DTensors built from uneven local shards"
    " without the global shape.",
    runs=_RUN,
)
def ranks_agree(case: Case) -> Iterator[Finding]:
    for moment in ("start", "at save point"):
        state = case["uninterrupted"].at(moment)
        for tables in ([s.parameters for s in state.ranks], [s.buffers for s in state.ranks]):
            names = {name: None for table in tables for name in table}
            for name in names:
                missing = tuple(rank for rank, table in enumerate(tables) if name not in table)
                if missing:
                    yield Violation(name, "on every rank", "missing", state.label, ranks=missing)
                    continue
                seen = [
                    f"{x.layout()} {x.shape} {x.dtype} requires_grad={x.requires_grad}"
                    for x in (table[name] for table in tables)
                ]
                odd = tuple(rank for rank, text in enumerate(seen) if text != seen[0])
                if odd:
                    yield Violation(
                        name, f"as on rank 0: {seen[0]}", seen[odd[0]], state.label, ranks=odd
                    )


@rule(
    "PLACE-04",
    "shards tile their tensors",
    statement="Each rank's local part of a DTensor is what mesh, placements and global shape say,"
    " so that the parts make up the tensor exactly once.",
    why="A shard of another size is read past its end by the next gather, or leaves a hole.",
    cause="DTensor.from_local on uneven shards without explicit shape and stride, or a local"
    " tensor exchanged behind the DTensor's back.",
    runs=_RUN,
    events=("dtensors",),
)
def shards_tile(case: Case) -> Iterator[Finding]:
    for moment in ("start", "at save point", "end"):
        state = case["uninterrupted"].at(moment)
        tables = state.parameters | state.buffers | state.optimizer_tensors
        for name, records in tables.items():
            if all(x.kind == "dtensor" for x in records):
                problem = geometry_problem(records)
                if problem:
                    yield Violation(name, "parts that make up the tensor", problem, state.label)


@rule(
    "PLACE-05",
    "no silent single-device run",
    statement="Starting a distributed run without an initialised process group raises at once.",
    why="A run that goes on alone trains the wrong model on one device while the others are paid"
    " for.",
    cause="Code that wraps only `if dist.is_initialized()`.",
    runs=("refusal",),
)
def refuses_without_group(case: Case) -> Iterator[Finding]:
    if case.declared.initialises_process_group:
        raise NotCovered("the trainer initialises the process group itself")
    if not case["refusal"].fact("refusal")[0]:
        yield Violation("start()", "an exception", "returned a run", "refusal: start")


@rule(
    "PLACE-06",
    "tensors live on the run's device",
    statement="Every parameter and buffer lives on the rank's device; none stays on another or on"
    " the meta device.",
    why="A DTensor wrapped before its module was moved keeps the old device under a new mesh.",
    cause="Wrapping first and moving later, or buffers that the materialising code forgot.",
    runs=_RUN,
)
def on_device(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    devices = run.fact("device")
    for moment in ("start", "end"):
        state = run.at(moment)
        for name, records in (state.parameters | state.buffers).items():
            bad = tuple(r for r, x in enumerate(records) if _kind(x.device) != _kind(devices[r]))
            if bad:
                seen = records[bad[0]].device
                yield Violation(name, devices[bad[0]], seen, state.label, ranks=bad)
            for rank, record in enumerate(records):
                if record.mesh is not None and record.mesh.device_type != _kind(record.device):
                    yield Violation(
                        name,
                        f"a mesh of {_kind(record.device)}",
                        f"a mesh of {record.mesh.device_type}",
                        state.label,
                        ranks=(rank,),
                    )


def _kind(device: str) -> str:
    return device.partition(":")[0]
