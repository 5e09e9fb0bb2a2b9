"""DCP: sharded checkpoints that are written in the background."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.layout import ShardLayout
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_NEEDS = ("save_sharded_async", "load_sharded")


@rule(
    "DCP-21",
    "a save in the background completes",
    statement="save_sharded_async() returns on every rank, the next step is made before anything"
    " is written, what it returned comes to its end, and load_sharded() reads the checkpoint.",
    why="The writers' collectives and the training's meet only under load, and then hang.",
    cause="A thread that communicates on the group that the training uses.",
    runs=("begun", "begun again"),
    needs=_NEEDS,
)
def background_completes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-21", "begun", "begun again")


@rule(
    "DCP-22",
    "what is done during a save is not in it",
    statement="All state that save_sharded_async() saves is what it was at the call, bit for bit,"
    " though the next step is made and every tensor is zeroed before the writers go on.",
    why="A checkpoint of two steps at once looks like one, and no step ever had it.",
    cause="Writers that are given references instead of copies.",
    runs=("begun", "begun again"),
    needs=_NEEDS,
)
def background_is_isolated(case: Case) -> Iterator[Finding]:
    run = case["begun"]
    saved, loaded = run.at("before save"), case["begun again"].at("after load")
    yield from compare_parts(case, run, saved, loaded)
    held = sum(map(bool, run.fact("writers held")))
    yield Measurement("ranks whose writers waited for the changes", float(held), 0.0)


@rule(
    "DCP-23",
    "a save in the background is a save",
    statement="save_sharded_async() writes the tensors that save_sharded() writes, under the same"
    " names and of the same sizes.",
    why="Which of the two wrote a checkpoint must not matter to who reads it.",
    cause="A second implementation that was not kept up with the first.",
    runs=("sharding", "begun"),
    needs=("save_sharded", *_NEEDS),
)
def background_is_a_save(case: Case) -> Iterator[Finding]:
    for run in ("sharding", "begun"):
        if not case[run].ranks or "layout" not in case[run].ranks[0].facts:
            case[run].fact("layout")  # Raises, with the reason that it is not there.
    one: ShardLayout = case["sharding"].ranks[0].facts["layout"]
    other: ShardLayout = case["begun"].ranks[0].facts["layout"]
    for name in [*one.chunks, *(name for name in other.chunks if name not in one.chunks)]:
        sizes = [str(x.chunks[name][0]) if name in x.chunks else "absent" for x in (one, other)]
        if sizes[0] != sizes[1]:
            yield Violation(name, sizes[0], sizes[1], "begun: sharded metadata")
    yield Measurement("tensors of the two checkpoints", len(other.chunks), len(one.chunks))


@rule(
    "DCP-24",
    "an error in the background comes up",
    statement="Where a rank's writers fail after save_sharded_async() has returned, every rank gets"
    " an exception from what it returned, or from the next save.",
    why="A job that believes in its checkpoints deletes the last one that is whole.",
    cause="A future that nobody asks for its result, or an error that one rank keeps to itself.",
    runs=("begun in vain",),
    needs=_NEEDS,
)
def background_errors(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-24", "begun in vain")
    run = case["begun in vain"]
    first, second = run.fact("at the wait"), run.fact("at the next")
    if not any(run.fact("writers failed")):
        raise NotCovered("no thread beside the training's opens the files, so none could fail")
    quiet = tuple(
        rank for rank, told in enumerate(zip(first, second, strict=True)) if not any(told)
    )
    if quiet:
        text = "an exception at the wait or at the next save"
        yield Violation("save_sharded_async", text, "none", "begun in vain", ranks=quiet)
    yield Measurement("ranks that were told at the wait", float(sum(map(bool, first))), 0.0)
