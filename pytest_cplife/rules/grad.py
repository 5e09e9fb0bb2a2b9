"""GRAD: steps are taken, gradients lie right, weights move, replicas stay replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pytest_cplife.evidence.records import TensorRecord, stranger_shape
from pytest_cplife.evidence.run import Unanswered
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import replicas_agree
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_RUN = ("uninterrupted",)
_STRETCHES = ("first", "next")


@rule(
    "GRAD-01",
    "training completes",
    statement="train() completes on every rank, before and after the save point.",
    why="Nothing can be resumed that cannot be trained.",
    cause="A collective that not every rank enters, or an operator without a sharding rule.",
    runs=_RUN,
)
def training_completes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "GRAD-01", *_RUN)


@rule(
    "GRAD-02",
    "losses are the same on all ranks",
    statement="train(n) returns n finite losses, the same on all ranks.",
    why="Ranks that see other losses decide otherwise: on early stopping, on the best checkpoint.",
    cause="Reporting the local loss instead of the mean over the mesh.",
    runs=_RUN,
)
def losses_agree(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    end = run.at("end")
    table = run.all_losses()
    for step in range(min(len(losses) for losses in table)):
        values = [losses[step] for losses in table]
        odd = tuple(rank for rank, value in enumerate(values) if value != values[0])
        if odd:
            yield Violation(
                "loss",
                f"{values[0]!r} as on rank 0",
                repr(values[odd[0]]),
                "uninterrupted",
                ranks=odd,
                step=step + 1,
            )
        bad = tuple(rank for rank, value in enumerate(values) if not math.isfinite(value))
        if bad:
            seen = repr(values[bad[0]])
            yield Violation("loss", "finite", seen, "uninterrupted", ranks=bad, step=step + 1)
    wanted = end.ranks[0].counters["global_step"]
    wanted -= run.at("start").ranks[0].counters["global_step"]
    for rank, losses in enumerate(table):
        if len(losses) != wanted:
            yield Violation(
                "train()", f"{wanted} losses", f"{len(losses)}", "uninterrupted", ranks=(rank,)
            )


@rule(
    "GRAD-03",
    "steps are counted once",
    statement="train(n) advances global_step by n on every rank and makes at least one call of"
    " an optimizer's step() for each.",
    why="A counter that runs ahead or behind shifts the schedule, the data and the seeds.",
    cause="Counting micro-batches, counting in a hook that also fires elsewhere, or two steps.",
    runs=_RUN,
)
def steps_counted(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    moments = (("start", "after first step", "first"), ("at save point", "after next step", "next"))
    for before, after, stretch in moments:
        a, b = run.at(before), run.at(after)
        steps = run.steps(stretch)
        for rank, (x, y) in enumerate(zip(a.ranks, b.ranks, strict=True)):
            made = y.counters["global_step"] - x.counters["global_step"]
            if made != 1:
                yield Violation(
                    "global_step", "1 more after train(1)", f"{made} more", b.label, ranks=(rank,)
                )
            calls = [
                sum(step.optimizer == position for step in steps[rank])
                for position in {group.optimizer for group in x.groups}
            ]
            if max(calls, default=0) != 1:
                yield Violation(
                    "optimizer.step()",
                    "called once by train(1)",
                    f"called {max(calls, default=0)} times",
                    b.label,
                    ranks=(rank,),
                )


@rule(
    "GRAD-04",
    "weights move",
    statement="Every trainable parameter that gets a gradient in the serial run gets one, and"
    " moves, in the distributed run.",
    why="A loss that lost its graph is finite, decreases nothing, and passes every shape check.",
    cause="A detached or re-wrapped DTensor loss, a gradient written to another tensor, or an"
    " optimizer over other objects.",
    runs=("serial", "uninterrupted"),
    events=("trainable parameters",),
)
def weights_move(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    start, end = run.at("start"), run.at("at save point")
    after = end.parameters
    still = {
        name: records
        for name, records in start.parameters.items()
        if records[0].requires_grad
        and name in after
        and run.assembler.digest(records) == run.assembler.digest(after[name])
    }
    without = {name for steps in run.steps("first") for s in steps for name in s.without_gradient}
    serial = _serial_gradients(case)
    trainable = [name for name, records in start.parameters.items() if records[0].requires_grad]
    if serial is None and trainable and len(still) == len(trainable):
        yield Violation("all weights", "moved", "none has", end.label)
    for name in still:
        # Without a serial run, a parameter that got no gradient may be one that never does.
        if name in serial if serial is not None else name not in without:
            seen = "no gradient" if name in without else "a gradient, but the same value"
            yield Violation(name, "moved", seen, end.label)
    moved = len(trainable) - len(still)
    yield Measurement(f"weights that stood still ({moved} moved)", float(len(still)), math.inf)


def _serial_gradients(case: Case) -> set[str] | None:
    """Parameters whose first serial gradient is there and not all zero; None without such a run."""
    serial = case["serial"]
    try:
        steps = serial.steps("first")[0]
        before, after = serial.at("start").parameters, serial.at("after first step").parameters
    except Unanswered as missing:
        if missing.not_offered:
            return None
        raise
    # Weight decay alone moves a weight too, so the gradient itself must have been there.
    return {
        name
        for step in steps
        for name in step.gradients
        if name in before and before[name][0].digest != after[name][0].digest
    }


@rule(
    "GRAD-05",
    "gradients lie like their parameters",
    statement="When the optimizer steps, the gradient of each DTensor parameter is a DTensor with"
    " the parameter's mesh and placements.",
    why="A partial gradient is one rank's share of the sum; the optimizer takes it for the whole.",
    cause="No redistribution of gradients after backward, or local code that returns a local"
    " gradient.",
    runs=_RUN,
    events=("gradients", "dtensors"),
)
def gradients_placed(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    state = run.at("start")
    for stretch in _STRETCHES:
        for rank, steps in enumerate(run.steps(stretch)):
            parameters = state.ranks[rank].parameters
            for step in steps:
                for name, gradient in step.gradients.items():
                    wanted = parameters.get(name)
                    if wanted is None or wanted.kind != "dtensor":
                        continue
                    a, b = wanted.layout(), gradient.layout()
                    if a != b or wanted.local_shape != gradient.local_shape:
                        yield Violation(
                            name,
                            f"{a} {wanted.local_shape}",
                            f"{b} {gradient.local_shape}",
                            f"uninterrupted: {stretch} step",
                            ranks=(rank,),
                            step=step.global_step,
                        )


@rule(
    "GRAD-06",
    "replicas have the same gradient",
    statement="Ranks that hold replicas of a parameter step with the same gradient, bit for bit.",
    why="Replicas that step with other gradients are other models from then on.",
    cause="A reduction over the wrong mesh dimension or none, or one rank's gradient scaled alone.",
    runs=_RUN,
    events=("gradients", "several ranks"),
)
def gradient_replicas(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    for stretch in _STRETCHES:
        per_rank = run.steps(stretch)
        for steps in zip(*per_rank, strict=False):
            tables = [_replicable(step.gradients) for step in steps]
            names = set.intersection(*map(set, tables))
            partly = set.union(*map(set, tables)) - names
            moment = f"uninterrupted: {stretch} step"
            for name in sorted(partly):
                have = tuple(r for r, table in enumerate(tables) if name not in table)
                yield Violation(name, "a gradient on every rank", "none", moment, ranks=have)
            columns = {name: [table[name] for table in tables] for name in sorted(names)}
            yield from replicas_agree(columns, moment=moment)


def _replicable(gradients: Mapping[str, TensorRecord]) -> dict[str, TensorRecord]:
    """Those of which ranks may hold replicas, by the name that a message has.

    A plain tensor that is no parameter of the model is the optimizer's own: a rank's flat part of
    all parameters (ZeRO), of which no other rank has a copy. A DTensor says what it is.
    """
    named = {}
    for name, gradient in gradients.items():
        shape = stranger_shape(name)
        if not shape:
            named[name] = gradient
        elif gradient.kind == "dtensor":
            named[f"optimizer tensor of shape {shape}, no parameter of the model"] = gradient
    return named


@rule(
    "GRAD-07",
    "replicas stay replicas",
    statement="After training, ranks that ought to hold the same bytes of a parameter or of"
    " optimizer state do.",
    why="A checkpoint keeps one replica; the others are lost, and with them what they had learnt.",
    cause="Gradients that were not reduced, noise drawn per rank on a replicated activation, or"
    " one rank updated alone.",
    runs=_RUN,
    events=("several ranks",),
)
def weight_replicas(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    for moment in ("after first step", "at save point", "end"):
        state = run.at(moment)
        yield from replicas_agree(state.parameters, moment=state.label)
        yield from replicas_agree(state.optimizer_tensors, moment=state.label)
