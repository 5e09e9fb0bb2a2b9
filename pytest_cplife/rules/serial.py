"""SERIAL: the serial model and what it makes of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import Table, compare
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule


@rule(
    "SERIAL-01",
    "the serial model loads the file",
    statement="Without a process group the serial model loads the checkpoint strictly, and then"
    " has the weights and persistent buffers that were saved, bit for bit.",
    why="Evaluation, export and the next project start from the serial model.",
    cause="Keys that are not the serial ones, missing placeholders, or shards in the file.",
    runs=("saving", "files"),
    events=("load changes weights",),
)
def serial_loads(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SERIAL-01", "files")
    live = case["saving"].at("before save")
    module = case["files"].fact("loaded serial")[0]
    persistent = set(live.ranks[0].persistent)
    expected = {
        name: records
        for name, records in (live.parameters | live.buffers).items()
        if name in persistent
    }
    observed = {
        name: [record]
        for name, record in (module["parameters"] | module["buffers"]).items()
        if name in module["state_dict"]
    }
    yield from compare(
        case, case["saving"].assembler, "serial weights", expected, observed, moment="serial"
    )


@rule(
    "SERIAL-02",
    "the serial model is always the same",
    statement="build_serial_model() completes, and two calls give the same parameters and buffers,"
    " bit for bit; where a serial run is offered, it starts and trains.",
    why="Every comparison with the serial model is worth what this is.",
    cause="Weights drawn from the global random stream without a fixed seed.",
    runs=("serial",),
)
def serial_repeats(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SERIAL-02", "serial")
    run = case["serial"]
    first, second = run.fact("first build")[0], run.fact("second build")[0]
    for what in ("parameters", "buffers"):
        tables: list[Table] = [
            {name: [record] for name, record in build[what].items()} for build in (first, second)
        ]
        yield from compare(case, run.assembler, what, *tables, moment="second build")
    if not first["parameters"]:
        yield Violation("parameters", "some", "none", "first build")
