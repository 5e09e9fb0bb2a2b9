"""PARAM: parameters, buffers and their names mirror the serial model."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule

_RUNS = ("serial", "uninterrupted")


def serial_tensors(case: Case, what: str) -> dict[str, TensorRecord]:
    """Parameters or buffers of the serial model by FQN."""
    tensors: dict[str, TensorRecord] = case["serial"].fact("first build")[0][what]
    return tensors


@rule(
    "PARAM-01",
    "names and order mirror the serial model",
    statement="The live model's parameters have the serial model's names, in its order.",
    why="Names are the keys of every checkpoint, and integer-keyed optimizer files go by order.",
    cause="A wrapper's prefix in the names, or modules registered in another order than before.",
    runs=_RUNS,
)
def names_mirror(case: Case) -> Iterator[Finding]:
    expected = list(serial_tensors(case, "parameters"))
    state = case["uninterrupted"].at("start")
    for snapshot in state.ranks:
        live = list(snapshot.parameters)
        ranks = (snapshot.rank,)
        for name in expected:
            if name not in live:
                yield Violation(name, "present", "missing", state.label, ranks=ranks)
        for name in live:
            if name not in expected:
                yield Violation(name, "no such name", "present", state.label, ranks=ranks)
        if sorted(live) == sorted(expected) and live != expected:
            at = next(i for i, (a, b) in enumerate(zip(live, expected, strict=True)) if a != b)
            yield Violation(
                live[at], f"{expected[at]} at position {at}", live[at], state.label, ranks=ranks
            )


@rule(
    "PARAM-02",
    "shapes and dtypes mirror the serial model",
    statement="Each parameter has the global shape and the dtype of its serial namesake.",
    why="A file of such parameters is not the serial model's.",
    cause="A DTensor made of local shards whose global shape was inferred, or a cast on the way.",
    runs=_RUNS,
)
def shapes_mirror(case: Case) -> Iterator[Finding]:
    state = case["uninterrupted"].at("start")
    live = state.parameters
    for name, wanted in serial_tensors(case, "parameters").items():
        for rank, record in enumerate(live.get(name, ())):
            a, b = f"{wanted.shape} {wanted.dtype}", f"{record.shape} {record.dtype}"
            if a != b:
                yield Violation(name, a, b, state.label, ranks=(rank,))


@rule(
    "PARAM-03",
    "initial values are the serial model's",
    statement="At the start every parameter's full value equals the serial one, bit for bit.",
    why="Ranks that draw their own initial weights train a model that no serial run knows.",
    cause="The run seeds its model with ctx.seed and build_serial_model with another seed;"
    " initialising after sharding with each rank's own random stream, or a device move that"
    " re-initialised.",
    runs=_RUNS,
)
def initial_values(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    state = run.at("start")
    yield from _mirror(case, "parameters", state, "initial weights")


@rule(
    "PARAM-04",
    "buffers mirror the serial model",
    statement="At the start every buffer, persistent or not, has its serial namesake's value on"
    " every rank.",
    why="A table or a running statistic that is junk on one rank poisons that rank's activations.",
    cause="Materialising from the meta device without filling buffers, or broadcasting parameters"
    " only.",
    runs=_RUNS,
    events=("buffers",),
)
def buffers_mirror(case: Case) -> Iterator[Finding]:
    state = case["uninterrupted"].at("start")
    yield from _mirror(case, "buffers", state, "initial buffers")
    expected = serial_tensors(case, "buffers")
    for name, records in state.buffers.items():
        wanted = expected.get(name)
        if wanted is None:
            yield Violation(name, "no such buffer", "present", state.label)
            continue
        # Plain buffers are not assembled from parts: each rank has to hold the whole value.
        odd = tuple(
            r
            for r, x in enumerate(records)
            if x.kind != "dtensor" and x.shape == wanted.shape and x.digest != wanted.digest
        )
        if odd:
            yield Violation(name, "the serial value", "another value", state.label, ranks=odd)


def _mirror(case: Case, what: str, state: Moment, label: str) -> Iterator[Finding]:
    serial = {name: [record] for name, record in serial_tensors(case, what).items()}
    live = getattr(state, what)
    shared = {name: records for name, records in serial.items() if name in live}
    for name in serial.keys() - live.keys():
        yield Violation(name, "present", "missing", state.label)
    yield from compare(
        case,
        case["uninterrupted"].assembler,
        label,
        shared,
        {name: live[name] for name in shared},
        moment=state.label,
    )


@rule(
    "PARAM-05",
    "requires grad mirrors the serial model",
    statement="Each parameter requires a gradient where its serial namesake does, except under a"
    " placeholder, where none does.",
    why="A parameter that is frozen by accident never trains; one thawed by accident does.",
    cause="Re-creating parameters while wrapping without passing requires_grad on.",
    runs=_RUNS,
)
def requires_grad_mirrors(case: Case) -> Iterator[Finding]:
    state = case["uninterrupted"].at("start")
    for name, serial in serial_tensors(case, "parameters").items():
        wanted = serial.requires_grad and not case.declared.is_placeholder(name)
        for rank, record in enumerate(state.parameters.get(name, ())):
            if record.requires_grad != wanted:
                yield Violation(
                    name, f"{wanted}", f"{record.requires_grad}", state.label, ranks=(rank,)
                )


@rule(
    "PARAM-09",
    "frozen parameters stay as they are",
    statement="A parameter that requires no gradient is unchanged after training, has no optimizer"
    " state, and holds no gradient of its own, before training or after it.",
    why="Weight decay or a stray update moves weights that were meant to be kept; a gradient that"
    " stays counts in norms, and in the first step after a thaw.",
    cause="Decoupled weight decay applied to frozen parameters, or gradients of a dry run, or of a"
    " time before they were frozen, that were kept.",
    runs=("uninterrupted",),
    events=("frozen parameters",),
)
def frozen_stay(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    start, end = run.at("start"), run.at("end")
    frozen = {
        name: records
        for name, records in start.parameters.items()
        if not records[0].requires_grad and not end.parameters[name][0].requires_grad
    }
    yield from compare(
        case,
        run.assembler,
        "frozen weights",
        frozen,
        {name: end.parameters[name] for name in frozen},
        moment=end.label,
    )
    for name in end.optimizer_state:
        if name.partition("[")[0] in frozen:
            yield Violation(name, "no optimizer state", "some", end.label)
    for name in frozen:
        for moment in (start, end):
            holding = tuple(s.rank for s in moment.ranks if name in s.frozen_gradients)
            if holding:
                yield Violation(name, "no gradient", "one that is not 0", moment.label, holding)
                break
