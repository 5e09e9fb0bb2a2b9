"""The likely cause, from the pattern of what differs and when: data, tried in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.evidence.records import Record, TensorRecord
from pytest_cplife.evidence.run import Moment, Unanswered
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.causes_of_averages import AVERAGES
from pytest_cplife.rules.causes_of_generations import GENERATIONS
from pytest_cplife.rules.causes_of_leftovers import LEFTOVERS
from pytest_cplife.rules.causes_of_losses import LOSSES
from pytest_cplife.rules.causes_of_rounding import ROUNDING
from pytest_cplife.rules.causes_of_samples import SAMPLES
from pytest_cplife.rules.causes_of_steps import STEPS
from pytest_cplife.rules.common import replicas_agree
from pytest_cplife.rules.model import Rule, Violation
from pytest_cplife.rules.noise import unit
from pytest_cplife.rules.pattern import Pattern, moment_of, subjects

_VALUES = ("SAVE-05", "SAVE-06", "LOAD-02", "LOAD-09", "OPT-02", "DCP-04", "DCP-05")
_LAST_BITS = 16


def diagnose(rule: Rule, case: Case, violations: Sequence[Violation]) -> str:
    """What the violations point to, in words; "" where no pattern fits."""
    for pattern in PATTERNS:
        if rule.id not in pattern.rules:
            continue
        try:
            if pattern.fits(case, violations):
                return pattern.text
        except (Unanswered, CannotAssemble):
            continue  # what a pattern asks about is not there, or is itself what is broken
    return ""


def _saved(case: Case) -> Moment:
    return moment_of(case, "saving" if "saving" in case.runs else "sharding", "before save")


def _loaded(case: Case) -> Moment:
    run = next((r for r in ("resumed", "unsharding", "crossed") if r in case.runs), "resumed")
    return moment_of(case, run, "after load")


def _tensors(moment: Moment) -> dict[str, list[TensorRecord]]:
    return moment.parameters | moment.buffers | moment.optimizer_tensors


def _sharded(record: Record) -> bool:
    return isinstance(record, TensorRecord) and record.local_shape != record.shape


def _uneven(records: Sequence[TensorRecord]) -> bool:
    return len({record.local_shape for record in records}) > 1


def _only(
    case: Case,
    violations: Sequence[Violation],
    kind: Callable[[Sequence[TensorRecord]], bool],
    other: Callable[[Sequence[TensorRecord]], bool],
) -> bool:
    """True where tensors of one kind differ, nearly all of them, and none of the other kind.

    Of what a step changes: that a frozen buffer is right says nothing of how shards are gathered.
    """
    bad = subjects(violations)
    state = any("[" in subject for subject in bad)
    saved = _saved(case)
    tables = saved.optimizer_tensors if state else saved.parameters
    ours = {name for name, records in tables.items() if kind(records)}
    others = {name for name, records in tables.items() if other(records)}
    return (
        bool(ours & bad) and bool(others) and not others & bad and len(ours - bad) <= len(ours) // 4
    )


def _only_uneven(case: Case, violations: Sequence[Violation]) -> bool:
    return _only(case, violations, _uneven, lambda r: any(map(_sharded, r)) and not _uneven(r))


def _only_sharded(case: Case, violations: Sequence[Violation]) -> bool:
    return _only(
        case, violations, lambda r: any(map(_sharded, r)), lambda r: not any(map(_sharded, r))
    )


def _local_shape(case: Case, violations: Sequence[Violation]) -> bool:
    tables = _tensors(_saved(case))
    shards = [
        violation
        for violation in violations
        if violation.subject in tables
        and violation.observed == f"shape {tables[violation.subject][0].local_shape}"
        and _sharded(tables[violation.subject][0])
    ]
    return bool(shards)


def _first_rank_everywhere(case: Case, violations: Sequence[Violation]) -> bool:
    saved, loaded = _tensors(_saved(case)), _tensors(_loaded(case))
    names = [n for n in subjects(violations) if n in saved and n in loaded]
    parted = [n for n in names if len({r.digest for r in saved[n]}) > 1]
    return bool(parted) and all(
        {r.digest for r in loaded[name]} == {saved[name][0].digest} for name in parted
    )


def _fresh_weights(case: Case, violations: Sequence[Violation]) -> bool:
    start, loaded = moment_of(case, "resumed", "start").parameters, _loaded(case).parameters
    names = [name for name in subjects(violations) if name in start and name in loaded]
    return bool(names) and all(_equal(start[name], loaded[name]) for name in names)


def _averages_loaded(case: Case, violations: Sequence[Violation]) -> bool:
    averages, loaded = _saved(case).ema, _loaded(case).parameters
    names = [name for name in subjects(violations) if name in averages and name in loaded]
    assembler = next(iter(case.runs.values())).assembler
    return bool(names) and all(
        assembler.digest(averages[name]) == assembler.digest(loaded[name]) for name in names
    )


def _only_steps(case: Case, violations: Sequence[Violation]) -> bool:
    return all(subject.endswith("[step]") for subject in subjects(violations))


def _only_moments(case: Case, violations: Sequence[Violation]) -> bool:
    bad = subjects(violations)
    return bool(bad) and not any(subject.endswith("[step]") for subject in bad)


def _some_ranks(case: Case, violations: Sequence[Violation]) -> bool:
    """Whether there are ranks on which everything that several ranks have a part of is right."""
    tables = _tensors(_saved(case))
    named = subjects(violations) & tables.keys()
    several = {name for name in named if sum(r.local_numel > 0 for r in tables[name]) > 1}
    wrong = {rank for one in violations if one.subject in several for rank in one.ranks}
    return 0 < len(wrong) < len(_saved(case).ranks)


def _equal(a: Sequence[TensorRecord], b: Sequence[TensorRecord]) -> bool:
    return [record.digest for record in a] == [record.digest for record in b]


def _weights_came_back(case: Case) -> bool:
    wanted = moment_of(case, "uninterrupted", "at save point").parameters
    loaded = _loaded(case).parameters
    return all(name in loaded and _equal(wanted[name], loaded[name]) for name in wanted)


def _first_losses(case: Case) -> tuple[object, object]:
    return (case["uninterrupted"].losses("next")[0][0], case["resumed"].losses("next")[0][0])


def _data_or_noise(case: Case, violations: Sequence[Violation]) -> bool:
    a, b = _first_losses(case)
    return _weights_came_back(case) and a != b


def _optimizer(case: Case, violations: Sequence[Violation]) -> bool:
    a, b = _first_losses(case)
    if not _weights_came_back(case) or a != b:
        return False
    x = moment_of(case, "uninterrupted", "after next step").parameters
    y = moment_of(case, "resumed", "after next step").parameters
    return any(name in y and not _equal(x[name], y[name]) for name in x)


def _rounding_only(case: Case, violations: Sequence[Violation]) -> bool:
    run = case["uninterrupted"]
    tensors = _tensors(run.at("end"))
    return _optimizer(case, violations) and all(
        violation.difference is not None
        and violation.subject in tensors
        and violation.difference <= _LAST_BITS * unit(run, tensors[violation.subject])
        for violation in violations
    )


def _weights_lost(case: Case, violations: Sequence[Violation]) -> bool:
    return not _weights_came_back(case)


def _first_gradients_part(case: Case, violations: Sequence[Violation]) -> bool:
    steps = [steps[0].gradients for steps in case["uninterrupted"].steps("first")]
    columns = {
        name: [table[name] for table in steps] for name in set.intersection(*map(set, steps))
    }
    return any(replicas_agree(columns, moment="first step"))


def _first_weights_part(case: Case, violations: Sequence[Violation]) -> bool:
    return any("after first step" in violation.moment for violation in violations)


PATTERNS = (
    *ROUNDING,
    *AVERAGES,
    *STEPS,
    *LOSSES,
    *SAMPLES,
    *GENERATIONS,
    *LEFTOVERS,
    Pattern(
        ("SAVE-05", "SAVE-06"),
        "the file has the shape of rank 0's shard: to_local() was written where full_tensor() was"
        " meant",
        _local_shape,
    ),
    Pattern(
        _VALUES,
        "every rank holds what rank 0 had: one rank's value was saved, broadcast or kept for all"
        " (values of several ranks under one key collapse into one)",
        _first_rank_everywhere,
    ),
    Pattern(
        ("LOAD-02",),
        "the weights are those of a fresh start: the load matched no key, or was overwritten by a"
        " later initialisation",
        _fresh_weights,
    ),
    Pattern(
        ("LOAD-02",),
        "the weights are the saved averages: live and averaged weights were exchanged",
        _averages_loaded,
    ),
    Pattern(
        _VALUES,
        "only tensors whose sharded dimension does not divide by the mesh differ: shards were put"
        " together as if all had one size (DTensor.from_local without shape and stride)",
        _only_uneven,
    ),
    Pattern(
        _VALUES,
        "only sharded tensors differ, whole ones are right: shards were gathered or split in"
        " another order than the placements say, or one rank's stands for all",
        _only_sharded,
    ),
    Pattern(
        ("OPT-01", "OPT-02"),
        "moments came back and step counts did not: bias correction starts again at step 1",
        _only_steps,
    ),
    Pattern(
        ("LOAD-02", "OPT-02"),
        "only some ranks' parts differ: they are cut, ordered or received otherwise there than on"
        " the other ranks",
        _some_ranks,
    ),
    Pattern(
        ("OPT-02",),
        "step counts came back and moments did not",
        _only_moments,
    ),
    Pattern(
        ("GO-02", "GO-03", "GO-04"),
        "weights were other ones already right after the load: see LOAD-02",
        _weights_lost,
    ),
    Pattern(
        ("GO-02", "GO-03", "GO-04"),
        "weights were equal after the load and the first loss differs: data position or random"
        " streams",
        _data_or_noise,
    ),
    Pattern(
        ("GO-02", "GO-03"),
        "only last bits differ, from the first step on: a process that has just started adds up its"
        " gradients in another order, as DDP does until it rebuilds its buckets (not so with"
        " find_unused_parameters=True); where that is meant, declare bitwise_resume = False",
        _rounding_only,
    ),
    Pattern(
        ("GO-02", "GO-03", "GO-04"),
        "weights and the first loss agree and the step that follows differs: the optimizer's state"
        " or hyperparameters, not data or noise",
        _optimizer,
    ),
    Pattern(
        ("GRAD-06", "GRAD-07"),
        "replicas step with other gradients from the first step on: gradients are not reduced over"
        " all of them alike, or each rank drew its own noise on an activation that is replicated",
        _first_gradients_part,
    ),
    Pattern(
        ("GRAD-07",),
        "replicas had the same gradients and part all the same at the first step: a rank's own"
        " update, or a write to its weights, that the others do not make",
        _first_weights_part,
    ),
)
"""The narrowest pattern comes first."""
