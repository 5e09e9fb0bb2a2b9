"""GO: what the model predicts: it disturbs nothing, and comes back."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.onward import same_predictions
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.save_silence import unchanged


@rule(
    "GO-11",
    "evaluation leaves training alone",
    statement="predict() changes no weight, buffer, optimizer entry, hyperparameter, counter or"
    " random stream of any rank, and leaves the model in the mode it found it in.",
    why="A run that is evaluated often is then another run than one that is not.",
    cause="Dropout left off, statistics updated in evaluation, or noise drawn from the training"
    " stream.",
    runs=("evaluated",),
    needs=("predict",),
)
def evaluation_is_silent(case: Case) -> Iterator[Finding]:
    yield from completes(case, "GO-11", "evaluated")
    run = case["evaluated"]
    before, after = run.at("before evaluation"), run.at("after prediction")
    yield from unchanged(case, run, before, after)
    for a, b in zip(before.ranks, after.ranks, strict=True):
        if a.training != b.training:
            yield Violation(
                "model.training", f"{a.training}", f"{b.training}", after.label, ranks=(b.rank,)
            )


@rule(
    "GO-12",
    "predictions come back",
    statement="On the same topology the prediction right after a load equals, bit for bit, the one"
    " at the save point, and is the same on all ranks.",
    why="It is the model that is shipped; whatever state it uses has to be in the file.",
    cause="A buffer, a cache or a mode that the checkpoint does not carry.",
    runs=("evaluated", "still"),
    needs=("predict",),
    budgeted=True,
)
def predictions_return(case: Case) -> Iterator[Finding]:
    a, b = case["evaluated"].fact("prediction"), case["still"].fact("prediction")
    if any(at == "at save point" for at, _ in case.noise.by_subject):
        # The two runs trained apart before they predicted, so their predictions may differ.
        raise NotCovered("two trainings of this trainer are not equal bit for bit")
    for moment, values in (("at the save point", a), ("after the load", b)):
        odd = tuple(rank for rank, x in enumerate(values) if x.digest != values[0].digest)
        if odd:
            yield Violation(
                "prediction", "the same on all ranks", "another value", moment, ranks=odd
            )
    yield from compare(
        case,
        case["still"].assembler,
        "prediction",
        {"prediction": a[:1]},
        {"prediction": b[:1]},
        moment="after the load",
    )


@rule(
    "GO-14",
    "predictions agree on another mesh",
    statement="Right after a load on another mesh than the saving one the prediction is the one"
    " made there, up to rounding as it is measured on the saving mesh.",
    why="A mesh that computes another function trains and evaluates another model.",
    cause="A forward pass that depends on the mesh: statistics of a local batch, a mask or a"
    " position that starts again on every rank.",
    runs=("onward", "crossed"),
    needs=("predict",),
)
def predictions_agree(case: Case) -> Iterator[Finding]:
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to load from")
    origin, run = case["onward of partner"], case["crossed"]
    yield from same_predictions(origin, run, origin=str(case.partner))
