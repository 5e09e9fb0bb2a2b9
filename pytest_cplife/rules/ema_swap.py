"""EMA: averages that are swapped in for an evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import compare, same_layout
from pytest_cplife.rules.files import file_averages
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.save import file_model
from pytest_cplife.rules.save_silence import unchanged


@rule(
    "EMA-08",
    "averages swap in and out",
    statement="Inside ema_weights() the model's weights are the averages, of the kind, mesh and"
    " placements that the live ones have; afterwards everything is what it was, and training goes"
    " on.",
    why="An evaluation that leaves averages, or plain tensors, in the model trains those.",
    cause="Restoring from a reference instead of a copy, or exchanging tensors instead of values.",
    runs=("uninterrupted", "evaluated"),
    needs=("ema_weights",),
    budgeted=True,
)
def swap_restores(case: Case) -> Iterator[Finding]:
    yield from completes(case, "EMA-08", "evaluated")
    run = case["evaluated"]
    before, inside = run.at("before evaluation"), run.at("averages in")
    averages = {name: records for name, records in before.ema.items() if name in before.parameters}
    shown = {name: inside.parameters[name] for name in averages if name in inside.parameters}
    same_dtype = {
        name: records
        for name, records in averages.items()
        if records[0].dtype == before.parameters[name][0].dtype
    }
    shown = {name: shown[name] for name in same_dtype if name in shown}
    yield from compare(
        case, run.assembler, "weights inside", same_dtype, shown, moment=inside.label
    )
    yield from same_layout(before.parameters, inside.parameters, moment=inside.label)
    yield from unchanged(case, run, before, run.at("averages out"))
    wanted, seen = case["uninterrupted"].at("after next step"), run.at("after next step")
    yield from compare(
        case,
        run.assembler,
        "weights after the swaps",
        wanted.parameters,
        seen.parameters,
        moment=seen.label,
        noisy_at="after next step",
    )


@rule(
    "EMA-09",
    "averages swap under inference mode",
    statement="Under torch.inference_mode() the averages swap in and out and leave everything as it"
    " was: no parameter becomes an inference tensor.",
    why="Evaluation loops run so, and a weight that became an inference tensor cannot be trained.",
    cause="A clone or copy_ made under inference mode without inference_mode(False).",
    runs=("evaluated",),
    needs=("ema_weights",),
)
def swap_under_inference(case: Case) -> Iterator[Finding]:
    yield from completes(case, "EMA-09", "evaluated")
    run = case["evaluated"]
    yield from unchanged(case, run, run.at("before evaluation"), run.at("after inference mode"))


@rule(
    "EMA-10",
    "an exception brings the live weights back",
    statement="An exception inside ema_weights() is passed on, and the live weights are back.",
    why="An out-of-memory error in evaluation that is caught upstream goes on with the averages.",
    cause="A restore after the yield that is not in a finally block.",
    runs=("evaluated",),
    needs=("ema_weights",),
)
def swap_survives_exception(case: Case) -> Iterator[Finding]:
    yield from completes(case, "EMA-10", "evaluated")
    run = case["evaluated"]
    for rank, seen in enumerate(run.fact("exception")):
        if seen != "passed on":
            yield Violation("exception", "passed on", seen, "evaluated", ranks=(rank,))
    yield from unchanged(case, run, run.at("before evaluation"), run.at("after an exception"))


@rule(
    "EMA-11",
    "a save inside the swap holds the live weights",
    statement="A checkpoint that is written while the averages are swapped in holds the live"
    " weights as the model's and the averages as the averages.",
    why="A best-model callback saves in evaluation; the resume then trains the averages.",
    cause="The saver reads the model while the swap has put the averages there.",
    runs=("evaluated",),
    needs=("ema_weights",),
)
def save_inside_swap(case: Case) -> Iterator[Finding]:
    yield from completes(case, "EMA-11", "evaluated")
    run = case["evaluated"]
    file, live = run.file("saved inside"), run.at("before evaluation")
    moment = "file saved inside the swap"
    yield from file_model(case, file, run, live, moment)
    if file.ema is not None:
        yield from file_averages(case, file, run, live, moment)
