"""SAVE: writing a checkpoint changes nothing, neither now nor later."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.records import Record, ValueRecord
from pytest_cplife.evidence.run import Moment, RunEvidence
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import compare, same_layout
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.save import file_model, file_state, written

_TRAINED = ("weights", "optimizer state")


@rule(
    "SAVE-07",
    "saving changes nothing",
    statement="Right after a save every parameter, buffer, optimizer entry, hyperparameter,"
    " scheduler entry, counter and random stream of every rank is what it was before.",
    why="A run that is saved often is then another run than one that is not.",
    cause="A hidden optimizer step that materialises state, a state_dict() whose tensors are"
    " converted in place, or random numbers drawn for a file name.",
    runs=("saving",),
    events=("trainable parameters",),
)
def saving_is_silent(case: Case) -> Iterator[Finding]:
    run = case["saving"]
    yield from unchanged(case, run, run.at("before save"), run.at("after save"))


def unchanged(
    case: Case, run: RunEvidence, before: Moment, after: Moment, *, prepared: bool = False
) -> Iterator[Finding]:
    """Compare everything that two moments of one run have.

    Args:
        prepared: allow new optimizer entries that are all zero, which is what a first step would
            start from anyway.
    """
    zeros: set[str] = set()
    if prepared:
        known = before.optimizer_state
        zeros = {
            name
            for name, records in after.optimizer_state.items()
            if name not in known and all(is_zero(run, record) for record in records)
        }
    yield from compare_parts(case, run, before, after, without=zeros)
    yield from same_layout(before.parameters, after.parameters, moment=after.label)
    for a, b in zip(before.ranks, after.ranks, strict=True):
        for stream, position in a.rng.items():
            if b.rng.get(stream) != position:
                yield Violation(
                    f"{stream} random stream", "untouched", "moved", after.label, ranks=(a.rank,)
                )
        for name in a.parameters.keys() & b.parameters.keys():
            if a.parameters[name].identity != b.parameters[name].identity:
                yield Violation(
                    name, "the same object", "another object", after.label, ranks=(a.rank,)
                )


def is_zero(run: RunEvidence, record: Record) -> bool:
    """Whether a record of optimizer state is what an optimizer starts with."""
    if isinstance(record, ValueRecord):
        return record.text in ("0", "0.0", "None", "False")
    if record.digest is None:
        return False
    local = run.assembler.store.get(record.digest, record.stored_dtype, record.local_shape)
    return not bool(local.any())


@rule(
    "SAVE-08",
    "a run that saves goes on like one that does not",
    statement="Weights and optimizer state of a run that saved equal, to the end, those of a run"
    " that never did.",
    why="What a save leaves behind (hooks, state, an advanced stream) shows steps later.",
    cause="As for SAVE-07, in places that a snapshot does not see.",
    runs=("uninterrupted", "saving"),
    budgeted=True,
    events=("weights moved",),
)
def saving_leaves_no_trace(case: Case) -> Iterator[Finding]:
    run, other = case["uninterrupted"], case["saving"]
    for moment in ("after next step", "end"):
        a, b = run.at(moment), other.at(moment)
        yield from compare_parts(case, run, a, b, *_TRAINED, noisy_at=moment)


@rule(
    "SAVE-09",
    "saving before the first step changes nothing",
    statement="A save before the first optimizer step changes no state, and the first step after"
    " it equals that of a run that never saved.",
    why="Many trainers save at step 0; if that materialises Adam's state by a hidden step, every"
    " bias correction from then on is off by one.",
    cause="get_optimizer_state_dict() of torch.distributed.checkpoint on an optimizer without"
    " state runs optimizer.step() with lr 0.",
    runs=("uninterrupted", "early"),
    budgeted=True,
)
def early_save_is_silent(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SAVE-09", "early")
    yield from written(case["early"])
    run, early = case["uninterrupted"], case["early"]
    start, after = early.at("start"), early.at("after save")
    yield from unchanged(case, early, start, after, prepared=True)
    moment = "after first step"
    a, b = run.at(moment), early.at(moment)
    yield from compare_parts(case, run, a, b, *_TRAINED, noisy_at=moment)


@rule(
    "SAVE-11",
    "a save between backward and step is right",
    statement="A save that is called inside the optimizer's step, where gradients are there and the"
    " step is not made, writes the state before that step, changes neither state nor gradients, and"
    " the step that follows equals that of a run that never saved.",
    why="A signal, a time limit or a callback saves when it comes, not between two steps.",
    cause="get_optimizer_state_dict() of torch.distributed.checkpoint, which zeroes gradients and"
    " steps to make state; a saver that clears gradients to gain memory, or gathers them, too.",
    level="should",
    runs=("uninterrupted", "midway"),
    budgeted=True,
    events=("gradients",),
)
def save_before_step(case: Case) -> Iterator[Finding]:
    if case.declared.save_points != "any":
        raise NotCovered("a save is possible at epoch ends only (save_points), not within a step")
    yield from completes(case, "SAVE-11", "midway")
    run, moment = case["midway"], "after next step"
    before, after = run.at("before save"), run.at("after save")
    yield from unchanged(case, run, before, after)
    tables = (run.fact(f"gradients {when}") for when in ("before", "after"))
    expected, observed = (
        {name: [table[name] for table in ranks] for name in set.intersection(*map(set, ranks))}
        for ranks in tables
    )
    yield from compare(case, run.assembler, "gradients", expected, observed, moment=after.label)
    a, b = case["uninterrupted"].at(moment), run.at(moment)
    yield from compare_parts(case, run, a, b, *_TRAINED, noisy_at=moment)
    if not all(run.fact("saved")):
        yield from written(run)
        return
    file = run.file("saved midway")
    yield from file_model(case, file, run, before, "file saved midway")
    if file.optimizers:
        yield from file_state(case, file, run, before, "file saved midway")


@rule(
    "SAVE-12",
    "the file stays as it was written",
    statement="Training on after a save changes no byte of the checkpoint.",
    why="A file that follows the live weights, or that is finished later, holds no step's state.",
    cause="A memory map of the file that live tensors share, or a writer that returns before it has"
    " written and reads tensors that have moved on.",
    runs=("saving",),
    events=("trainable parameters",),
)
def file_stays(case: Case) -> Iterator[Finding]:
    run = case["saving"]
    if not run.fact("file kept")[0]:
        yield Violation("checkpoint", "the same bytes", "other bytes", run.at("end").label)
