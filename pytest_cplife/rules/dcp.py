"""DCP: sharded checkpoints, written by all ranks and read by any topology."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_cplife.evidence.layout import ShardLayout, model_keys, tiling_problem
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.rng import owners_of
from pytest_cplife.rules.save_silence import unchanged
from pytest_cplife.rules.shares import itemsize, saved_model, unbalanced

_NEEDS = ("save_sharded", "load_sharded")
_DATA_FILE = re.compile(r"__\d+_\d+\.distcp")


@rule(
    "DCP-01",
    "sharded saving and loading complete",
    statement="save_sharded() completes on every rank, and in fresh processes load_sharded() does.",
    why="A model that is too large for one file has no other checkpoint.",
    cause="A template that differs from what was saved, or a rank that writes alone.",
    runs=("sharding", "unsharding"),
    needs=_NEEDS,
)
def sharded_completes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-01", "sharding", "unsharding")


@rule(
    "DCP-02",
    "sharded files have the dcp layout",
    statement="The directory holds one .metadata and data files named __rank_number.distcp, which"
    " are those that the metadata names, and no file that is still to be renamed (*.tmp).",
    why="Tools that convert, inspect and reshard expect that layout, and copy what no load reads.",
    cause="A pickle per rank under another name, or data or metadata of an interrupted save left"
    " behind.",
    runs=("sharding",),
    needs=_NEEDS,
)
def dcp_layout(case: Case) -> Iterator[Finding]:
    layout = _layout(case)
    if layout.metadata != 1:
        yield Violation(".metadata", "one", f"{layout.metadata}", "sharded directory")
    for name in layout.files:
        if not _DATA_FILE.fullmatch(name):
            yield Violation(name, "__rank_number.distcp", "another name", "sharded directory")
    if not layout.files:
        yield Violation("data files", "some", "none", "sharded directory")
    for name in filter(_DATA_FILE.fullmatch, layout.strays):
        yield Violation(name, "named by the metadata", "in none of it", "sharded directory")
    for name in layout.absent:
        yield Violation(name, "present", "named by the metadata only", "sharded directory")
    for name in layout.unfinished:
        yield Violation(name, "no such file", "present", "sharded directory")


def _layout(case: Case) -> ShardLayout:
    run = case["sharding"]
    if not run.ranks or "layout" not in run.ranks[0].facts:
        run.fact("layout")  # Raises, with the reason that it is not there.
    layout: ShardLayout = run.ranks[0].facts["layout"]
    return layout


@rule(
    "DCP-03",
    "chunks tile each tensor once",
    statement="The chunks that the metadata lists for a tensor cover each of its elements exactly"
    " once.",
    why="A hole is left at its initial value by the load, and an overlap is decided by chance.",
    cause="DTensors made of uneven shards without the global shape, or empty shards at offset 0.",
    runs=("sharding",),
    needs=_NEEDS,
)
def chunks_tile(case: Case) -> Iterator[Finding]:
    chunks = _layout(case).chunks
    if not chunks:
        yield Violation("tensors", "some", "none", "sharded metadata")
    for name, (size, parts) in chunks.items():
        problem = tiling_problem(size, parts)
        if problem:
            yield Violation(name, f"chunks that tile {size}", problem, "sharded metadata")


@rule(
    "DCP-04",
    "the full train state comes back",
    statement="After load_sharded() on the same mesh, weights, buffers, optimizer state, averages,"
    " hyperparameters, schedulers, counters and extra state are on every rank those that were"
    " saved, bit for bit.",
    why="A sharded checkpoint is a checkpoint: all of it has to come back.",
    cause="A fresh optimizer's empty state as the template, values that differ between ranks kept"
    " under one key, or dtypes narrowed to the template's.",
    runs=("sharding", "unsharding"),
    needs=_NEEDS,
)
def full_state(case: Case) -> Iterator[Finding]:
    saved, loaded = case["sharding"].at("before save"), case["unsharding"].at("after load")
    yield from compare_parts(case, case["sharding"], saved, loaded)
    yield from compare_parts(case, case["sharding"], saved, loaded, "extra state")
    if case.declared.rng_policy != "restore":
        return
    owners = owners_of(saved)
    for a, b in zip(saved.ranks, loaded.ranks, strict=True):
        for stream, state in a.rng.items():
            if b.rng.get(stream) != state:
                whose = owners.get((stream, b.rng.get(stream, "")))
                yield Violation(
                    f"{stream} random stream",
                    "the saved state of that rank",
                    "another state" if whose is None else f"that of rank {whose}",
                    loaded.label,
                    ranks=(b.rank,),
                )


@rule(
    "DCP-05",
    "sharded checkpoints load on another mesh",
    statement="What was saved sharded on another declared mesh loads on this one: weights, buffers,"
    " optimizer state, averages, hyperparameters, schedulers and counters, bit for bit.",
    why="Resharding is what the format is for.",
    cause="Local shards saved as tensors of their own, rank numbers in keys, or strided shards"
    " read in another order.",
    runs=("sharding", "resharding"),
    needs=_NEEDS,
)
def reshards(case: Case) -> Iterator[Finding]:
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to load from")
    yield from completes(case, "DCP-05", "resharding")
    saved = case["sharding of partner"].at("before save")
    loaded = case["resharding"].at("after load")
    label = f"resharded from {case.partner}: after load"
    yield from compare_parts(case, case["resharding"], saved, loaded, moment=label)


@rule(
    "DCP-06",
    "sharded saving changes nothing",
    statement="Right after save_sharded() every piece of state is what it was before.",
    why="Sharded checkpoints are the frequent ones; what they disturb adds up.",
    cause="As for SAVE-07: state materialised by a hidden step, or tensors converted in place.",
    runs=("sharding",),
    needs=_NEEDS,
)
def sharded_saving_is_silent(case: Case) -> Iterator[Finding]:
    run = case["sharding"]
    yield from unchanged(case, run, run.at("before save"), run.at("after save"))


@rule(
    "DCP-07",
    "training goes on from a sharded checkpoint",
    statement="The step after load_sharded() equals the step after the save, in weights and"
    " optimizer state.",
    why="A state that compares equal and trains otherwise has left something out.",
    cause="Something outside of the compared state steers the step: data position, a flag.",
    runs=("sharding", "unsharding"),
    needs=_NEEDS,
    budgeted=True,
)
def sharded_goes_on(case: Case) -> Iterator[Finding]:
    moment = "after next step"
    a, b = case["sharding"].at(moment), case["unsharding"].at(moment)
    parts = ("weights", "optimizer state")
    yield from compare_parts(case, case["sharding"], a, b, *parts, noisy_at=moment)


@rule(
    "DCP-08",
    "replicas are written once",
    statement="Together the data files are not much larger than the state that they hold.",
    why="Every replica written multiplies the time of a save and the space on disk.",
    cause="Plain tensors saved by every rank under names of their own, or whole storages behind"
    " views.",
    level="should",
    runs=("sharding",),
    needs=_NEEDS,
)
def written_once(case: Case) -> Iterator[Finding]:
    layout, live = _layout(case), case["sharding"].at("before save")
    seen: dict[tuple[str, object], int] = {}
    for table in (live.parameters, live.buffers, live.optimizer_tensors, live.ema):
        for name, records in table.items():
            size = records[0].numel * itemsize(records[0].dtype)
            seen[name, table is live.ema] = size
    need = sum(seen.values())
    stored = sum(layout.files.values())
    # Each tensor costs a pickle header per chunk, which rules tiny models.
    headers = 2048 * sum(len(parts) for _, parts in layout.chunks.values())
    if stored > 1.5 * need + headers:
        yield Violation("data files", f"about {need} bytes", f"{stored} bytes", "sharded directory")
    yield Measurement("bytes stored per byte of state, headers apart", stored / max(need, 1), 1.5)


@rule(
    "DCP-12",
    "sizes in the metadata are whole tensors'",
    statement="Under the model's names the metadata lists the shapes of the whole tensors, as the"
    " live model has them.",
    why="A reader with another number of ranks makes its tensors by these sizes.",
    cause="Local shards saved as tensors of their own, or DTensors made anew from them.",
    runs=("sharding",),
    needs=_NEEDS,
)
def whole_sizes(case: Case) -> Iterator[Finding]:
    live = case["sharding"].at("before save")
    chunks = _layout(case).chunks
    saved = saved_model(live)
    keys = model_keys(chunks, list(saved))
    if not keys:
        raise NotCovered("no keys of the metadata go by the model's names")
    for name, key in keys.items():
        size, shape = chunks[key][0], saved[name][0].shape
        if size != shape:
            yield Violation(key, f"shape {shape}", f"size {size}", "sharded metadata")
    yield Measurement("tensors of the model in the metadata, missing", len(saved) - len(keys), 0)


@rule(
    "DCP-18",
    "the model's part is read by itself",
    statement="One process without a group reads the model's tensors, and no others, from the"
    " sharded checkpoint with torch.distributed.checkpoint; they are the saved ones, bit for bit.",
    why="Evaluation, export and transfer want the weights and not three times as much.",
    cause="Keys that name ranks, shards that are not pieces of a whole tensor, or tensors that are"
    " packed into objects.",
    runs=("sharding", "sharded files"),
    needs=_NEEDS,
)
def model_alone(case: Case) -> Iterator[Finding]:
    yield from completes(case, "DCP-18", "sharded files")
    read: dict[str, TensorRecord] = case["sharded files"].fact("model's part")[0]
    saved = saved_model(case["sharding"].at("before save"))
    expected = {name: records for name, records in saved.items() if name in read}
    observed = {name: [read[name]] for name in expected}
    assembler = case["sharding"].assembler
    label = "sharded files: read alone"
    yield from compare(case, assembler, "weights and buffers", expected, observed, moment=label)


@rule(
    "DCP-19",
    "ranks write about equally much",
    statement="No rank writes much more than the busiest one has to, if each piece is written once,"
    " by the least busy of the ranks that hold it.",
    why="A save takes as long as its busiest rank.",
    cause="Replicas that are all left to the first of their ranks, or one rank that gathers.",
    level="should",
    runs=("sharding",),
    needs=_NEEDS,
)
def balanced(case: Case) -> Iterator[Finding]:
    layout, live = _layout(case), case["sharding"].at("before save")
    if len(live.ranks) == 1:
        raise NotCovered("there is one rank")
    yield from unbalanced(layout, live)
