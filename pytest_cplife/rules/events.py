"""What the evidence must show before a pass means anything.

A rule that saw nothing fails as *vacuous*; where the trainer simply has no such thing (no
buffers, one rank) the rule is not covered, with that reason.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_cplife.evidence.records import ValueRecord
from pytest_cplife.evidence.run import Moment, TensorColumns, Unanswered
from pytest_cplife.rules.case import Case, NotCovered

_SOURCES = (
    ("saving", "before save"),
    ("uninterrupted", "at save point"),
    ("resumed", "after load"),
    ("uninterrupted", "start"),
    ("resumed", "start"),
)


def _state(case: Case) -> Moment:
    """The most telling state that the case has."""
    for run, moment in _SOURCES:
        evidence = case.runs.get(run)
        if evidence and evidence.ranks and all(moment in j.snapshots for j in evidence.ranks):
            return evidence.at(moment)
    raise LookupError(f"none of the runs {', '.join(case.runs)} has a state")


def _trainable(case: Case) -> bool:
    return any(x[0].requires_grad for x in _state(case).parameters.values())


def _dtensors(case: Case) -> bool:
    parameters = _state(case).parameters
    if parameters and all(case.declared.is_plain(name) for name in parameters):
        raise NotCovered("all parameters are declared plain")
    return any(x[0].kind == "dtensor" for x in parameters.values())


def _buffers(case: Case) -> bool:
    if not _state(case).buffers:
        raise NotCovered("the model has no buffers")
    return True


def _placeholders(case: Case) -> bool:
    if not case.declared.placeholders:
        raise NotCovered("no placeholders are declared")
    return True


def _frozen(case: Case) -> bool:
    if all(x[0].requires_grad for x in _state(case).parameters.values()):
        raise NotCovered("the model has no frozen parameters")
    return True


def _optimizer_state(case: Case) -> bool:
    state = _state(case)
    if state.optimizer_state:
        return True
    # SGD without momentum keeps nothing; any other optimizer that has stepped keeps something.
    plain_sgd = ValueRecord("int", "0"), ValueRecord("float", "0.0")
    if state.groups and all(group.values.get("momentum") in plain_sgd for group in state.groups):
        raise NotCovered("the optimizer (SGD without momentum) keeps no state")
    return False


def _schedulers(case: Case) -> bool:
    if not _state(case).ranks[0].schedulers:
        raise NotCovered("the run has no schedulers")
    return True


def _several_ranks(case: Case) -> bool:
    if len(_state(case).ranks) == 1:
        raise NotCovered("one rank has no replicas")
    return True


def _gradients(case: Case) -> bool:
    return any(step.gradients for steps in case["uninterrupted"].steps("first") for step in steps)


def _moved(a: TensorColumns, b: TensorColumns) -> bool:
    return any(
        [x.digest for x in records] != [x.digest for x in b[name]]
        for name, records in a.items()
        if name in b
    )


def _weights_moved(case: Case) -> bool:
    run = case["uninterrupted"]
    return _moved(run.at("start").parameters, run.at("at save point").parameters)


def _weights_moved_on(case: Case) -> bool:
    run = case["uninterrupted"]
    return _moved(run.at("at save point").parameters, run.at("end").parameters)


def _load_changes(case: Case) -> bool:
    source = case["saving" if "saving" in case.runs else "serial saving"]
    saved = source.at("before save").parameters
    if "resumed" in case.runs:
        return _moved(case["resumed"].at("start").parameters, saved)
    return _moved(source.at("after first step").parameters, saved)


def _steps_before(case: Case) -> bool:
    return _state(case).ranks[0].counters["global_step"] > 0


EVENTS: dict[str, tuple[str, Callable[[Case], bool]]] = {
    "trainable parameters": ("a trainable parameter", _trainable),
    "dtensors": ("a DTensor parameter", _dtensors),
    "buffers": ("a buffer", _buffers),
    "placeholders": ("a placeholder", _placeholders),
    "frozen parameters": ("a frozen parameter", _frozen),
    "optimizer state": ("optimizer state after the first steps", _optimizer_state),
    "schedulers": ("a scheduler", _schedulers),
    "several ranks": ("more than one rank", _several_ranks),
    "gradients": ("a gradient at the first step", _gradients),
    "weights moved": ("a weight that moved before the save point", _weights_moved),
    "weights moved on": ("a weight that moved after the save point", _weights_moved_on),
    "load changes weights": ("saved weights that differ from initial ones", _load_changes),
    "steps before the save": ("a step before the save", _steps_before),
}
"""By name: what must be seen, and how it is."""


def unseen(case: Case, events: tuple[str, ...]) -> str:
    """The first of `events` that the evidence does not show, as text; "" where all are there.

    Raises:
        NotCovered: the trainer has no such thing.
    """
    for name in events:
        text, seen = EVENTS[name]
        try:
            if not seen(case):
                return text
        except (Unanswered, LookupError):
            # The run did not get there; the check, which asks for the same, says so better.
            continue
    return ""
