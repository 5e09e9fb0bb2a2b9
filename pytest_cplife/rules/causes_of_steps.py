"""Patterns of steps and stops that went wrong: on another mesh, and one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_cplife.evidence.compare import as_doubles
from pytest_cplife.evidence.run import Moment, RunEvidence, Unanswered
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.parts import PARTS
from pytest_cplife.rules.pattern import Pattern, alike, moment_of, subjects

_STEPS = ("GO-13", "SERIAL-06")
_PAIRS = (
    ("onward of partner", "crossed"),
    ("onward", "through serial"),
    ("serial saving", "from serial"),
)
_SAME_WAY = 0.98
"""The cosine from which two movements count as one direction."""


def _pair(case: Case, violations: Sequence[Violation]) -> tuple[RunEvidence, RunEvidence]:
    """The run on the saving side and the one elsewhere that the violations tell of."""
    for origin, run in _PAIRS:
        told = any(violation.moment.startswith(f"{run} from") for violation in violations)
        if told and origin in case.runs and run in case.runs:
            return case[origin], case[run]
    raise Unanswered("onward", "onward")


def _other_state(case: Case, violations: Sequence[Violation]) -> bool:
    origin, run = _pair(case, violations)
    a, b = origin.at("onward").optimizer_tensors, run.at("onward").optimizer_tensors
    return set(a) != set(b) or any(
        origin.assembler.digest(a[name]) != origin.assembler.digest(b[name]) for name in a
    )


def _scaled(case: Case, violations: Sequence[Violation]) -> bool:
    origin, run = _pair(case, violations)
    ratios = []
    for name in subjects(violations):
        x, y = (_movement(each, name) for each in (origin, run))
        size = float(x.norm() * y.norm())
        if not size or float(x @ y) < _SAME_WAY * size:
            return False
        ratios.append(float(y.norm() / x.norm()))
    return bool(ratios) and max(ratios) < 1.1 * min(ratios)


def _movement(run: RunEvidence, name: str) -> torch.Tensor:
    before, after = run.at("onward").parameters, run.at("onward 1").parameters
    a, b = (as_doubles(run.assembler.full(table[name])) for table in (before, after))
    return (b - a).reshape(-1)


def _same_state(case: Case, violations: Sequence[Violation]) -> bool:
    return not _other_state(case, violations)


def _first_resume_right(case: Case, violations: Sequence[Violation]) -> bool:
    """Whether only what a resumed run saved comes back otherwise."""
    if not any("relayed again: after load" in violation.moment for violation in violations):
        return False
    saved, loaded = (
        moment_of(case, "uninterrupted", "at save point"),
        moment_of(case, "relayed", "after load"),
    )
    return _same(saved, loaded)


def _same(a: Moment, b: Moment) -> bool:
    return all(
        alike(table(a)[name], table(b).get(name, ()))
        for table in (PARTS["weights"], PARTS["optimizer state"], PARTS["counters"])
        for name in table(a)
    )


def _only_reported(case: Case, violations: Sequence[Violation]) -> bool:
    return all(
        alike(records, moment_of(case, "resumed", moment).parameters.get(name, ()))
        for moment in ("after next step", "end")
        for name, records in moment_of(case, "uninterrupted", moment).parameters.items()
    )


def _hyperparameters_as_started(case: Case, violations: Sequence[Violation]) -> bool:
    return _as_started(case, violations, "hyperparameters")


def _schedule_as_started(case: Case, violations: Sequence[Violation]) -> bool:
    return _as_started(case, violations, "schedulers")


def _buffers_as_started(case: Case, violations: Sequence[Violation]) -> bool:
    return _as_started(case, violations, "buffers")


def _as_started(case: Case, violations: Sequence[Violation], part: str) -> bool:
    start, loaded = (
        PARTS[part](moment_of(case, "resumed", moment)) for moment in ("start", "after load")
    )
    names = [name for name in subjects(violations) if name in start and name in loaded]
    return bool(names) and all(alike(start[name], loaded[name]) for name in names)


def _groups_exchanged(case: Case, violations: Sequence[Violation]) -> bool:
    """Whether each group has what another one of its optimizer had."""
    saved, loaded = (
        PARTS["hyperparameters"](moment_of(case, run, moment))
        for run, moment in (("saving", "before save"), ("resumed", "after load"))
    )
    names = [name for name in subjects(violations) if name in saved and name in loaded]
    return len(names) > 1 and all(
        any(
            other != name and _same_key(other, name) and alike(saved[other], loaded[name])
            for other in saved
        )
        for name in names
    )


def _same_key(one: str, other: str) -> bool:
    """Whether two names ``optimizer 0 group 1: lr`` tell of one key of one optimizer."""
    a, b = (name.partition(" group ") for name in (one, other))
    return a[0] == b[0] and a[2].partition(": ")[2] == b[2].partition(": ")[2]


def _first_rank_only(case: Case, violations: Sequence[Violation]) -> bool:
    saved, loaded = (
        state.parameters | state.buffers
        for state in (
            moment_of(case, "saving", "before save"),
            moment_of(case, "resumed", "after load"),
        )
    )
    names = [name for name in subjects(violations) if name in saved and name in loaded]
    return (
        bool(names)
        and all(
            saved[name][0].digest == loaded[name][0].digest
            # Where the others have the first rank's part, it was sent to them.
            and all(other.digest != saved[name][0].digest for other in loaded[name][1:])
            for name in names
        )
    )


def _ranks_with_state(case: Case) -> list[bool]:
    run = next((r for r in ("resumed", "unsharding", "resharding") if r in case.runs), "resumed")
    return [bool(s.optimizer_state) for s in moment_of(case, run, "after load").ranks]


def _no_state(case: Case, violations: Sequence[Violation]) -> bool:
    return not any(_ranks_with_state(case))


def _state_on_first_rank(case: Case, violations: Sequence[Violation]) -> bool:
    first, *others = _ranks_with_state(case)
    return first and bool(others) and not any(others)


def _others_state(case: Case, violations: Sequence[Violation]) -> bool:
    """Whether what differs is the saved state of another parameter, for nearly all of it."""
    saved = moment_of(case, "saving", "before save").optimizer_tensors
    loaded = moment_of(case, "resumed", "after load").optimizer_tensors
    assembler = case["saving"].assembler
    known = {assembler.digest(records) for name, records in saved.items() if records[0].shape}
    names = [name for name in subjects(violations) if name in saved and name in loaded]
    moved = [name for name in names if assembler.digest(loaded[name]) in known]
    return bool(moved) and 2 * len(moved) >= len(names)


def _streams(case: Case, run: str, moment: str) -> list[dict[str, str]]:
    return [snapshot.rng for snapshot in moment_of(case, run, moment).ranks]


def _first_ranks_stream(case: Case, violations: Sequence[Violation]) -> bool:
    saved, loaded = _streams(case, "saving", "before save"), _streams(case, "resumed", "after load")
    return len(loaded) > 1 and all(rng.get("torch") == saved[0].get("torch") for rng in loaded)


def _gradients_gone(case: Case, violations: Sequence[Violation]) -> bool:
    before, after = (case["midway"].fact(f"gradients {when}")[0] for when in ("before", "after"))
    return bool(before) and not after


STEPS = (
    Pattern(
        _STEPS,
        "the optimizer's state was another one already before the step: LOAD-09, SERIAL-03 and"
        " SERIAL-04 say what did not come along",
        _other_state,
    ),
    Pattern(
        _STEPS,
        "weights move the right way and by another length, all alike: a learning rate, a loss or a"
        " gradient is scaled by the number of ranks",
        _scaled,
    ),
    Pattern(
        _STEPS,
        "the state was the same and the step goes another way: other data, or noise that is not"
        " dropout",
        _same_state,
    ),
    Pattern(
        ("GO-04",),
        "only the reported losses differ, weights agree to the end: what is reported carries"
        " something over that is not saved",
        _only_reported,
    ),
    Pattern(
        ("GO-09",),
        "the first resume was right, and what it saved is not what it held: loaded copies went to"
        " the file, or counts since the load",
        _first_resume_right,
    ),
    Pattern(
        ("OPT-04",),
        "param groups have each other's values: they were given out by position, in another order"
        " than they were saved in",
        _groups_exchanged,
    ),
    Pattern(
        ("OPT-04",),
        "these are a fresh optimizer's: the file's groups were left out, or written over by what"
        " was built after the load",
        _hyperparameters_as_started,
    ),
    Pattern(
        ("SCHED-01",),
        "the schedule is a fresh one: nothing of it was loaded",
        _schedule_as_started,
    ),
    Pattern(
        ("LOAD-02", "LOAD-04"),
        "only rank 0 has what was saved: it was loaded there and not sent to the others",
        _first_rank_only,
    ),
    Pattern(
        ("LOAD-04",),
        "the buffers are those of a fresh start: they are not in the file, or not read from it",
        _buffers_as_started,
    ),
    Pattern(
        ("OPT-01", "DCP-04"),
        "no optimizer state came back at all: it was read into a new optimizer's empty state, or"
        " the file's was passed over",
        _no_state,
    ),
    Pattern(
        ("OPT-01",),
        "only rank 0 has optimizer state: it was loaded there and not sent to the others",
        _state_on_first_rank,
    ),
    Pattern(
        ("OPT-02",),
        "parameters have the state of others: it was given out by position, in another order than"
        " it was saved in",
        _others_state,
    ),
    Pattern(
        ("RNG-01",),
        "every rank goes on with rank 0's stream: one rank's was saved, or loaded, for all",
        _first_ranks_stream,
    ),
    Pattern(
        ("SAVE-11",),
        "the save has freed the gradients, and the step is made with none",
        _gradients_gone,
    ),
)
"""The narrowest pattern comes first."""
