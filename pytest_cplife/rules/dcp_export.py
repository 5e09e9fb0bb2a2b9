"""DCP: the way from a sharded checkpoint to the plain file."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Finding
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.shares import saved_model


@rule(
    "DCP-20",
    "a sharded checkpoint becomes a plain file",
    statement="export_plain() makes of what save_sharded() wrote, in one process without a group, a"
    " file with the saved weights, and a run that loads it has the saved state, bit for bit.",
    why="A training that saves sharded only would end with something that nobody else can read.",
    cause="A conversion that knows the weights alone, or that was not kept up with the format.",
    runs=("sharding", "exporting", "exported"),
    needs=("save_sharded", "load_sharded", "export_plain"),
)
def becomes_plain(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-20", "exporting", "exported")
    run = case["sharding"]
    live = run.at("before save")
    saved, file = saved_model(live), case["exporting"].file("exported").model
    expected = {name: records for name, records in saved.items() if name in file}
    observed = {name: [file[name]] for name in expected}
    label = "exporting: the file"
    yield from compare(case, run.assembler, "weights and buffers", expected, observed, moment=label)
    yield from compare_parts(case, run, live, case["exported"].at("after load"))
