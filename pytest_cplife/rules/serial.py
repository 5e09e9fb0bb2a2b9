"""SERIAL: the serial model and what it makes of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.run import Moment, RunEvidence
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import Table, compare
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.onward import same_predictions, same_steps
from pytest_cplife.rules.parts import carried, compare_parts, group_values
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_HOW = ("foreach", "fused", "capturable", "differentiable")
"""Hyperparameters that say how torch makes a step and not which: a serial run may have its own."""


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


def _arrived(case: Case, run: RunEvidence, saved: Moment, loaded: Moment) -> Iterator[Finding]:
    """Compare what was saved on one topology with what is there after its load on another."""
    keys = {*group_values(saved), *group_values(loaded)}
    how = {key for key in keys if key.rpartition(": ")[2] in _HOW}
    yield from compare_parts(case, run, carried(saved), loaded, moment=loaded.label, without=how)


@rule(
    "SERIAL-03",
    "a serial checkpoint resumes on the mesh",
    statement="What a serial run saves loads on the mesh: weights, buffers, optimizer state,"
    " averages, hyperparameters, schedules and counters are the serial run's, bit for bit.",
    why="Work begins on one device and goes on on many; what the way costs is not seen.",
    cause="Moments of a serial file left as plain tensors or skipped, state keyed by the number of"
    " a parameter, or a loader that asks for entries only a distributed run writes.",
    runs=("serial saving", "from serial"),
    events=("load changes weights",),
)
def serial_file_resumes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SERIAL-03", "serial saving", "from serial")
    saved, loaded = case["serial saving"].at("before save"), case["from serial"].at("after load")
    yield from _arrived(case, case["from serial"], saved, loaded)


@rule(
    "SERIAL-04",
    "a checkpoint of the mesh resumes in a serial run",
    statement="What is saved on the mesh loads in a serial run: weights, buffers, optimizer state,"
    " averages, hyperparameters, schedules and counters are those that were saved, bit for bit.",
    why="A fault is debugged, and a model tuned further, on one device.",
    cause="Shards in the optimizer's part of the file, DTensors that only a mesh can read, or a"
    " loader that is right in its distributed branch only.",
    runs=("saving", "through serial"),
    events=("load changes weights",),
)
def mesh_file_resumes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SERIAL-04", "through serial")
    saved, loaded = case["saving"].at("before save"), case["through serial"].at("after load")
    yield from _arrived(case, case["through serial"], saved, loaded)


@rule(
    "SERIAL-05",
    "a checkpoint survives a serial run on its way",
    statement="What was saved on another mesh, loaded in a serial run and saved there again, loads"
    " on this mesh as it was first saved, bit for bit.",
    why="Each way alone may be right by the other one's mistake; only the round trip shows what the"
    " serial file lacks.",
    cause="A serial save that leaves out what it has no use for: averages, streams, the state of"
    " modules that only run distributed.",
    runs=("saving", "crossed back"),
    events=("load changes weights",),
)
def there_and_back(case: Case) -> Iterator[Finding]:
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to come from")
    yield from completes(case, "SERIAL-05", "crossed back")
    saved = case["saving of partner"].at("before save")
    yield from _arrived(case, case["crossed back"], saved, case["crossed back"].at("after load"))


@rule(
    "SERIAL-06",
    "steps agree between serial run and mesh",
    statement="Without dropout, the steps after a load move the weights as on the saving side, from"
    " serial run to mesh and from mesh to serial run, up to rounding as it is measured there.",
    why="State may come back whole and be used otherwise: at another lr, on other data.",
    cause="A learning rate or an accumulation scaled by the number of ranks, moments that are there"
    " and ignored, or a data position that counts a rank's own batches.",
    runs=("onward", "through serial", "serial saving", "from serial"),
)
def serial_steps(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SERIAL-06", "through serial", "serial saving", "from serial")
    reasons = []
    ways = (
        ("onward", "through serial", str(case.spec)),
        ("serial saving", "from serial", "a serial run"),
    )
    for origin, run, where in ways:
        try:
            yield from same_steps(case[origin], case[run], origin=where)
        except NotCovered as reason:
            reasons.append(str(reason))
    if len(reasons) == len(ways):
        raise NotCovered(reasons[0])


@rule(
    "SERIAL-07",
    "the serial run predicts what the mesh does",
    statement="After it has loaded the mesh's checkpoint, the serial run's prediction is that of"
    " the mesh from the same file, up to rounding as it is measured there.",
    why="The serial model is what is evaluated, exported and shipped.",
    cause="A buffer or a scale that only the distributed model applies, averages loaded for"
    " weights, or a prediction put together from the ranks' parts in another order.",
    runs=("onward", "through serial"),
    needs=("predict",),
)
def serial_prediction(case: Case) -> Iterator[Finding]:
    yield from same_predictions(case["onward"], case["through serial"], origin=str(case.spec))


@rule(
    "SERIAL-08",
    "a stranger reads the file",
    statement="torch.load() reads the plain checkpoint in a new interpreter where neither the"
    " adapter's package nor this one can be imported; it starts no process group and loads nothing"
    " more of torch.distributed than import torch does. It is judged on one mesh's file.",
    why="A file outlives the code that wrote it: after a rename it is read by torch alone or not.",
    cause="A configuration or a callback's state pickled as the object that it is, or a DTensor;"
    " what is there by design is declared as payload_objects.",
    level="should",
    runs=("saving", "fresh"),
)
def stranger_reads(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SERIAL-08", "fresh")
    told = case["fresh"].fact("told")[0]
    if case.declared.payload_objects is True and (told["refusal"] or told["distributed"]):
        raise NotCovered(
            "the adapter declares that checkpoints hold any object (payload_objects = True)"
        )
    if told["refusal"]:
        yield Violation("checkpoint", "read by torch alone", told["refusal"], "fresh")
    for name in told["distributed"]:
        yield Violation(name, "not loaded", "loaded to read the file", "fresh")
    if told["process group"]:
        yield Violation("process group", "none", "one was started by reading", "fresh")
