"""LOAD: what a load restores, right after it and before any step."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.records import ValueRecord
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import compare, replicas_agree, same_layout
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.param_identity import (
    FLATTENED,
    broken_ties,
    held_by_optimizers,
    holds_flattened,
    ties,
)
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_RUNS = ("saving", "resumed")
_PORTABLE = ("weights", "buffers", "optimizer state", "averages", "counters")


@rule(
    "LOAD-01",
    "loading completes",
    statement="In fresh processes a run starts, and load(path) and ready() complete on every rank.",
    why="A checkpoint that cannot be loaded was not worth saving.",
    cause="Plain tensors offered to DTensor parameters, optimizer state of another layout, or keys"
    " that do not match.",
    runs=_RUNS,
)
def loading_completes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "LOAD-01", "resumed")


@rule(
    "LOAD-02",
    "weights come back",
    statement="Right after a load every parameter's full value equals the saved one, bit for bit.",
    why="Training goes on from other weights than it stopped with.",
    cause="A key that was skipped, a shard taken for the whole, another rank's value, a cast, or"
    " averaged weights loaded as live ones.",
    runs=_RUNS,
    events=("load changes weights",),
)
def weights_return(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    yield from compare_parts(case, case["saving"], saved, loaded, "weights")


@rule(
    "LOAD-03",
    "tensors keep kind and placement",
    statement="After a load each parameter and buffer is of the kind, mesh, placements, shape and"
    " device that it had before.",
    why="A DTensor replaced by a plain tensor trains on its own on each rank.",
    cause="load_state_dict(assign=True) with plain tensors, or parameters made anew from the file.",
    runs=("resumed",),
)
def layout_kept(case: Case) -> Iterator[Finding]:
    before, after = case["resumed"].at("start"), case["resumed"].at("after load")
    yield from same_layout(before.parameters, after.parameters, moment=after.label)
    yield from same_layout(before.buffers, after.buffers, moment=after.label)


@rule(
    "LOAD-04",
    "buffers come back",
    statement="After a load every buffer has on every rank the value that was saved.",
    why="Running statistics or tables that restart change every activation.",
    cause="Saving parameters only, or filling buffers on rank 0 only.",
    runs=_RUNS,
    events=("buffers",),
)
def buffers_return(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    assembler = case["saving"].assembler
    # Plain buffers may differ between ranks while training (statistics of local batches); a plain
    # file has room for one value, and rank 0's is what every rank gets back.
    wanted = {
        name: records if records[0].kind == "dtensor" else [records[0]] * len(records)
        for name, records in saved.buffers.items()
    }
    yield from compare(case, assembler, "buffers", wanted, loaded.buffers, moment=loaded.label)


@rule(
    "LOAD-05",
    "dtype and requires grad are kept",
    statement="After a load each parameter has the dtype and requires_grad that it was saved with.",
    why="A silent cast rounds every weight; a thawed parameter trains.",
    cause="Loading in the file's dtype, or re-creating parameters with the default requires_grad.",
    runs=_RUNS,
)
def attributes_kept(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    for name, records in saved.parameters.items():
        wanted = f"{records[0].dtype} requires_grad={records[0].requires_grad}"
        for rank, record in enumerate(loaded.parameters.get(name, ())):
            seen = f"{record.dtype} requires_grad={record.requires_grad}"
            if seen != wanted:
                yield Violation(name, wanted, seen, loaded.label, ranks=(rank,))


@rule(
    "LOAD-06",
    "optimizers still hold the live parameters",
    statement="After a load the optimizers hold the model's live parameters, and ties are those of"
    " the saved run.",
    why="A load that re-creates parameters leaves the optimizer stepping the old ones.",
    cause="Loading by assignment after the optimizer was built, or tying only at construction.",
    runs=_RUNS,
    events=("trainable parameters",),
)
def identity_kept(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    broken = [
        violation
        for a, b in zip(saved.ranks, loaded.ranks, strict=True)
        for violation in broken_ties(ties(a.parameters), ties(b.parameters), loaded, b.rank)
    ]
    yield from broken
    if not holds_flattened(saved):
        yield from held_by_optimizers(loaded)
    elif not broken:
        raise NotCovered(FLATTENED)


@rule(
    "LOAD-07",
    "counters come back",
    statement="After a load global_step and epoch are on every rank what they were when saved.",
    why="A step that restarts takes the schedule, the data and the seeds with it.",
    cause="A counter that is no part of the file, or counts from the load.",
    runs=_RUNS,
    events=("steps before the save",),
)
def counters_return(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    yield from compare_parts(case, case["saving"], saved, loaded, "counters")


@rule(
    "LOAD-08",
    "loading leaves the file alone",
    statement="Neither a load nor the training that follows it changes a byte of the checkpoint.",
    why="The next load of it, on another rank or day, then reads something else.",
    cause="Opening for writing, a migration in place, or a memory map that is written through.",
    runs=("resumed",),
)
def file_unchanged(case: Case) -> Iterator[Finding]:
    if not case["resumed"].fact("file unchanged")[0]:
        yield Violation("checkpoint", "the same bytes", "other bytes", "resumed: after load")
    elif not case["resumed"].fact("file kept")[0]:
        yield Violation("checkpoint", "the same bytes", "other bytes", "resumed: end")


@rule(
    "LOAD-09",
    "a file of another mesh loads",
    statement="What was saved on another declared mesh loads on this one: weights, buffers,"
    " optimizer state, averages and counters are those that were saved, bit for bit.",
    why="A cluster changes its size; a checkpoint that does not is lost with the old size.",
    cause="A file of shards, state laid out for the saving mesh, or a loader that assumes its own"
    " world size.",
    runs=("saving", "crossed"),
)
def crosses_meshes(case: Case) -> Iterator[Finding]:
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to load from")
    yield from completes(case, "LOAD-09", "crossed")
    origin, run = case["saving of partner"], case["crossed"]
    saved, loaded = origin.at("before save"), run.at("after load")
    moment = f"crossed from {case.partner}: after load"
    yield from compare_parts(case, run, saved, loaded, *_PORTABLE, moment=moment)


@rule(
    "LOAD-10",
    "replicas agree after a load",
    statement="Right after a load, ranks that ought to hold the same bytes do: weights, optimizer"
    " state and plain buffers.",
    why="Ranks that read other content start as other models, and no error says so.",
    cause="Loading on one rank without broadcasting all of it, or each rank reading a file of its"
    " own.",
    runs=("resumed",),
    events=("several ranks",),
)
def replicas_after_load(case: Case) -> Iterator[Finding]:
    loaded = case["resumed"].at("after load")
    for columns in (loaded.parameters, loaded.buffers, loaded.optimizer_tensors):
        yield from replicas_agree(columns, moment=loaded.label)


@rule(
    "LOAD-11",
    "a step with zero lr moves nothing",
    statement="After a load, a step with every learning rate at 0 leaves every weight as it is.",
    why="A stale master copy, or one that was never loaded, overwrites the weights at the first"
    " step, whatever the lr.",
    cause="Loading the weights but not the copies derived from them: masters, flat buffers, clones"
    " of an offload.",
    runs=("saving", "still"),
)
def still_step(case: Case) -> Iterator[Finding]:
    yield from completes(case, "LOAD-11", "still")
    run = case["still"]
    used = {
        value
        for steps in run.steps("still")
        for step in steps
        for group in step.hyperparameters
        for key, value in group.items()
        if key == "lr" and isinstance(value, ValueRecord)
    }
    if any(float(value.text) != 0.0 for value in used):
        raise NotCovered("the trainer sets its own lr before the step")
    before, after = run.at("after load").parameters, run.at("after still step").parameters
    # A weight that moved was not made from the loaded one; -0.0 and such are no movement.
    moment = "still: after a step with lr 0"
    yield from compare(case, run.assembler, "weights", before, after, moment=moment)
