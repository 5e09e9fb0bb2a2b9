"""Patterns of averaged weights that went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.evidence.filing import FileRecord
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment, TensorColumns, Unanswered
from pytest_cplife.rules.averages import (
    decay_of,
    due_at,
    full,
    inferred_decays,
    rounding_budget,
    trajectory,
)
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.pattern import Pattern, alike, moment_of, subjects

_NEAR = 1e-2


def _full_alike(case: Case, a: TensorColumns, b: TensorColumns, names: set[str]) -> bool:
    """Whether the full tensors are the same, for all of `names` that both have."""
    assembler = next(iter(case.runs.values())).assembler
    shared = [name for name in names if name in a and name in b]
    return bool(shared) and all(
        assembler.digest(a[name]) == assembler.digest(b[name]) for name in shared
    )


def _stands_still(before: Moment, after: Moment, names: set[str]) -> bool:
    a, b = before.ema, after.ema
    shared = [name for name in names if name in a and name in b]
    return bool(shared) and all(alike(a[name], b[name]) for name in shared)


def _never_updated(case: Case, violations: Sequence[Violation]) -> bool:
    start, end = (moment_of(case, "uninterrupted", moment) for moment in ("start", "at save point"))
    return _stands_still(start, end, set(start.ema))


def _some_not_updated(case: Case, violations: Sequence[Violation]) -> bool:
    start, end = (moment_of(case, "uninterrupted", moment) for moment in ("start", "at save point"))
    return _stands_still(start, end, subjects(violations))


def _updated_twice(case: Case, violations: Sequence[Violation]) -> bool:
    spec = case.declared.ema_spec
    if spec is None:
        return False
    step = max(1, spec.start_step)
    if not due_at(spec, step) or spec.init == "first_update":
        return False
    names = (
        ("start", "after first step")
        if step == 1
        else (
            "after first step" if step == 2 else f"after step {step - 1}",
            f"after step {step}",
        )
    )
    moments = [moment_of(case, "uninterrupted", name) for name in names]
    averaged = [name for name in moments[0].ema if name in moments[0].parameters]
    shown = inferred_decays(case["uninterrupted"].assembler, moments, averaged)[1]
    return shown is not None and abs(shown - decay_of(spec, 1) ** 2) < _NEAR * max(shown, _NEAR)


def _takes_older_weights(case: Case, violations: Sequence[Violation]) -> bool:
    """Whether each average is the rule's, of the weights that there were a step before."""
    spec, run = case.declared.ema_spec, case["uninterrupted"]
    if spec is None:
        return False
    moments = trajectory(run)
    for violation in violations:
        step, name = violation.step, violation.subject
        if step is None or name not in moments[step - 1].parameters or not due_at(spec, step):
            return False
        average, weight, seen = (
            full(run.assembler, table[name])
            for table in (moments[step - 1].ema, moments[step - 1].parameters, moments[step].ema)
        )
        decay = decay_of(spec, sum(due_at(spec, past) for past in range(1, step + 1)))
        wanted = decay * average + (1 - decay) * weight
        budget = rounding_budget(wanted, weight, moments[step].ema[name][0].dtype, 1)
        if not float((wanted - seen).abs().max()) <= budget:
            return False
    return True


def _tied(case: Case, violations: Sequence[Violation]) -> bool:
    parameters = moment_of(case, "uninterrupted", "start").ranks[0].parameters
    owners = [record.identity for record in parameters.values()]
    return all(
        name in parameters and owners.count(parameters[name].identity) > 1
        for name in subjects(violations)
    )


def _made_anew(case: Case, violations: Sequence[Violation]) -> bool:
    loaded = moment_of(case, "resumed", "after load")
    return _full_alike(case, loaded.ema, loaded.parameters, subjects(violations))


def _begins_again(case: Case, violations: Sequence[Violation]) -> bool:
    after = moment_of(case, "resumed", "after next step")
    return _full_alike(case, after.ema, after.parameters, subjects(violations))


def _no_update_after_load(case: Case, violations: Sequence[Violation]) -> bool:
    loaded, after = (
        moment_of(case, "resumed", moment) for moment in ("after load", "after next step")
    )
    return _stands_still(loaded, after, subjects(violations))


def _came_back(case: Case, violations: Sequence[Violation]) -> bool:
    saved = moment_of(case, "uninterrupted", "at save point")
    loaded = moment_of(case, "resumed", "after load")
    return _stands_still(saved, loaded, set(saved.ema))


def _file(case: Case) -> tuple[FileRecord, Moment]:
    """The file that a rule looks at, and the state that it ought to hold."""
    if "evaluated" in case.runs:
        return case["evaluated"].file("saved inside"), case["evaluated"].at("before evaluation")
    if "files" not in case.runs:
        raise Unanswered("files", "saved")
    return case["files"].file("saved"), moment_of(case, "saving", "before save")


def _file_has(case: Case, violations: Sequence[Violation], part: str, live: TensorColumns) -> bool:
    file, state = _file(case)
    told = [state.parameters[name][0] for name in subjects(violations) & set(state.parameters)]
    if told and not any(parameter.requires_grad for parameter in told):
        return False  # the average of what never moves is the weight itself, and tells nothing
    table = (file.model if part == "model" else file.ema) or {}
    held = {name: [r] for name, r in table.items() if isinstance(r, TensorRecord)}
    return _full_alike(case, held, live, subjects(violations))


def _averages_as_model(case: Case, violations: Sequence[Violation]) -> bool:
    return _file_has(case, violations, "model", _file(case)[1].ema)


def _weights_as_averages(case: Case, violations: Sequence[Violation]) -> bool:
    return _file_has(case, violations, "averages", _file(case)[1].parameters)


def _shard_of_average(case: Case, violations: Sequence[Violation]) -> bool:
    averages = _file(case)[1].ema
    return any(
        violation.subject in averages
        and violation.observed == f"shape {averages[violation.subject][0].local_shape}"
        for violation in violations
    )


AVERAGES = (
    Pattern(
        ("EMA-01",),
        "no average moves: the update is never called, or matches no name",
        _never_updated,
    ),
    Pattern(
        ("EMA-01",),
        "the first update shows the square of its decay: two updates are made for each step, per"
        " micro-batch or by two callers",
        _updated_twice,
    ),
    Pattern(
        ("EMA-01",),
        "each update takes in the weights from before the optimizer's step: it is made too early,"
        " or from a copy",
        _takes_older_weights,
    ),
    Pattern(
        ("EMA-01", "EMA-02"),
        "these averages stand still while others move: the update does not reach them",
        _some_not_updated,
    ),
    Pattern(
        ("EMA-02",),
        "only a tied tensor has another decay: it is updated once per name",
        _tied,
    ),
    Pattern(
        ("EMA-03",),
        "the averages are the loaded weights: they were made anew, after the load or because the"
        " file's were not looked for",
        _made_anew,
    ),
    Pattern(
        ("EMA-04",),
        "with the first update after the load the averages became the weights: that averaging had"
        " begun is not restored",
        _begins_again,
    ),
    Pattern(
        ("EMA-04",),
        "the averages came back and the step after the load does not move them: their start is"
        " counted from the load, or what the run shows as its averages are tensors that the load"
        " has replaced",
        _no_update_after_load,
    ),
    Pattern(
        ("EMA-04",),
        "the averages came back and part at the next update: its number, and with it the warm-up of"
        " the decay, did not come back",
        _came_back,
    ),
    Pattern(
        ("EMA-12",),
        "the file has the shape of rank 0's shard of the average: to_local() was written where"
        " full_tensor() was meant",
        _shard_of_average,
    ),
    Pattern(
        ("EMA-11", "EMA-12"),
        "what the file keeps as averages are the live weights: the two were exchanged",
        _weights_as_averages,
    ),
    Pattern(
        ("SAVE-05", "EMA-11"),
        "what was taken for the model's state in the file are the averages: it was saved with them"
        " swapped in; or, where the file keeps the trained weights elsewhere by design,"
        " read_checkpoint has to be overridden to say where",
        _averages_as_model,
    ),
)
"""The narrowest pattern comes first."""
