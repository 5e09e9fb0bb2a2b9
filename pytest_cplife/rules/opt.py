"""OPT: optimizer state and hyperparameters, right after a load and before any step."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import Table, compare, replicas_agree, same_keys, show
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.registry import rule

_RUNS = ("saving", "resumed")


@rule(
    "OPT-01",
    "optimizer state is complete",
    statement="After a load each parameter has every entry of optimizer state that it had when"
    " saved, and no other.",
    why="A missing moment is an optimizer that starts again for that weight, with no error.",
    cause="A fresh optimizer's empty state used as the template of the load, state of one rank or"
    " one optimizer only, or the file's state skipped.",
    runs=_RUNS,
    events=("optimizer state",),
)
def state_complete(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    for a, b in zip(saved.ranks, loaded.ranks, strict=True):
        for name, entries in a.optimizer_state.items():
            other = b.optimizer_state.get(name, {})
            lost = sorted(set(entries) - set(other))
            if lost:
                yield Violation(name, ", ".join(lost), "missing", loaded.label, ranks=(b.rank,))
        for name, entries in b.optimizer_state.items():
            new = sorted(set(entries) - set(a.optimizer_state.get(name, {})))
            if new:
                yield Violation(
                    name, "no such entry", ", ".join(new), loaded.label, ranks=(b.rank,)
                )


@rule(
    "OPT-02",
    "optimizer state comes back",
    statement="After a load every entry of optimizer state equals the saved one, bit for bit, each"
    " under its own parameter's name.",
    why="Wrong moments are worse than none: they push weights where other weights should go.",
    cause="State mapped by position where the order changed, rank 0's shard given to every rank, a"
    " cast to the parameter's dtype, or step counts that restart.",
    runs=_RUNS,
    events=("optimizer state",),
)
def state_returns(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    # What is missing altogether is OPT-01's to say.
    a, b = saved.optimizer_state, loaded.optimizer_state
    shared = [name for name in a if name in b]
    yield from compare(
        case,
        case["saving"].assembler,
        "optimizer state",
        {name: a[name] for name in shared},
        {name: b[name] for name in shared},
        moment=loaded.label,
    )


@rule(
    "OPT-03",
    "optimizer state lies like its parameter",
    statement="Before the first step after a load, state of a parameter's shape has the parameter's"
    " kind, mesh and placements, and scalars are scalars.",
    why="Full-size plain moments beside DTensor parameters fail, or broadcast, at the next step.",
    cause="Plain state loaded into the optimizer without redistribution to the parameters.",
    runs=_RUNS,
    events=("optimizer state",),
)
def state_placed(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    for state in (saved, loaded):
        for snapshot in state.ranks:
            for name, entries in snapshot.optimizer_state.items():
                parameter = snapshot.parameters.get(name)
                for entry, record in entries.items():
                    if parameter is None or not isinstance(record, TensorRecord):
                        continue
                    if record.shape != parameter.shape:
                        continue
                    # 0-d state of a 0-d parameter may well be a step count.
                    if not parameter.shape and record.kind == "plain":
                        continue
                    if (record.kind, record.placements, record.local_shape) != (
                        parameter.kind,
                        parameter.placements,
                        parameter.local_shape,
                    ):
                        yield Violation(
                            f"{name}[{entry}]",
                            show(parameter),
                            show(record),
                            state.label,
                            ranks=(snapshot.rank,),
                        )
    for name, records in saved.optimizer_state.items():
        back = loaded.optimizer_state.get(name)
        if back is None:
            continue
        for rank, (a, b) in enumerate(zip(records, back, strict=True)):
            if not (isinstance(a, TensorRecord) and isinstance(b, TensorRecord)):
                continue
            if (a.kind, a.shape, a.placements) != (b.kind, b.shape, b.placements):
                yield Violation(name, show(a), show(b), loaded.label, ranks=(rank,))


@rule(
    "OPT-04",
    "hyperparameters come back",
    statement="After a load every key of every param group (lr, initial_lr, betas, weight_decay,"
    " the trainer's own) is what it was when saved.",
    why="The first step after a resume is otherwise made with a fresh run's lr or weight decay.",
    cause="A scheduler built after the load, groups filtered to the keys of a new optimizer, or"
    " only one optimizer's groups restored.",
    runs=_RUNS,
    events=("trainable parameters",),
)
def hyperparameters_return(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    yield from compare_parts(case, case["saving"], saved, loaded, "hyperparameters")


@rule(
    "OPT-05",
    "parameters stay in their groups",
    statement="After a load each param group holds the parameters it held when saved, in order.",
    why="A weight in another group decays, or learns, at another rate from then on.",
    cause="Groups rebuilt from a set or a filter whose order is another, or merged into one.",
    runs=_RUNS,
    events=("trainable parameters",),
)
def groups_kept(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    for a, b in zip(saved.ranks, loaded.ranks, strict=True):
        before = {(g.optimizer, g.index): g.names for g in a.groups}
        after = {(g.optimizer, g.index): g.names for g in b.groups}
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                yield Violation(
                    f"optimizer {key[0]} group {key[1]}",
                    ", ".join(before.get(key, ("no such group",))),
                    ", ".join(after.get(key, ("no such group",))),
                    loaded.label,
                    ranks=(b.rank,),
                )


@rule(
    "OPT-06",
    "placeholders have no optimizer state",
    statement="Parameters under a placeholder have no optimizer state, before a save and after a"
    " load.",
    why="State for weights that are never trained grows the file and hides a thawed module.",
    cause="Optimizer state created for every parameter of the model, to have a template.",
    runs=_RUNS,
    events=("placeholders",),
)
def placeholders_without_state(case: Case) -> Iterator[Finding]:
    for state in (case["saving"].at("before save"), case["resumed"].at("after load")):
        for name in state.optimizer_state:
            if case.declared.is_placeholder(name.partition("[")[0]):
                yield Violation(name, "no optimizer state", "some", state.label)


@rule(
    "OPT-07",
    "state keeps type and dtype",
    statement="After a load each entry of optimizer state has the type and dtype it had.",
    why="fp32 moments of bf16 weights are rounded by a cast; a float step count loses steps past"
    " 256 in bf16.",
    cause="Optimizer.load_state_dict casts floating-point state to the parameter's dtype; a full"
    " state is cast for a broadcast.",
    runs=_RUNS,
    events=("optimizer state",),
)
def state_types(case: Case) -> Iterator[Finding]:
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    for name, records in saved.optimizer_state.items():
        for rank, (a, b) in enumerate(
            zip(records, loaded.optimizer_state.get(name, ()), strict=False)
        ):
            x, y = _type(a), _type(b)
            if x != y:
                yield Violation(name, x, y, loaded.label, ranks=(rank,))


def _type(record: object) -> str:
    if isinstance(record, TensorRecord):
        return f"{record.type_name} {record.dtype}"
    return getattr(record, "type_name", "")


@rule(
    "OPT-08",
    "ranks agree on optimizer state",
    statement="At a save all ranks have state for the same parameters, and replicas of it agree.",
    why="A file keeps one of them; what the other ranks had is lost.",
    cause="An optimizer built over each rank's own choice of parameters, or stepped on one rank.",
    runs=("saving",),
    events=("several ranks", "optimizer state"),
)
def state_agrees(case: Case) -> Iterator[Finding]:
    state = case["saving"].at("before save")
    first = _entries(state.ranks[0])
    for snapshot in state.ranks[1:]:
        other = _entries(snapshot)
        moment = f"{state.label}, rank {snapshot.rank} against rank 0"
        yield from same_keys(first, other, moment=moment)
    yield from replicas_agree(state.optimizer_tensors, moment=state.label)


@rule(
    "OPT-09",
    "the first step is the first",
    statement="After one step the step counts in the optimizer state are those of the serial run"
    " after one step.",
    why="A step that was made in secret, to create state, shifts every bias correction from then"
    " on.",
    cause="Asking torch.distributed.checkpoint for an optimizer's state before its first step.",
    runs=("serial", "parity"),
)
def first_step_counts(case: Case) -> Iterator[Finding]:
    wanted = case["serial"].at("after first step").optimizer_state
    state = case["parity"].at("after first step")
    counts = {name: r for name, r in wanted.items() if name.endswith("[step]")}
    if not counts:
        raise NotCovered("the optimizer keeps no step counts")
    seen = {name: r[:1] for name, r in state.optimizer_state.items() if name in counts}
    kept = {name: counts[name] for name in seen}
    yield from compare(
        case, case["parity"].assembler, "step counts", kept, seen, moment=state.label
    )
    if not seen:
        yield Violation("step counts", "some", "none", state.label)


def _entries(snapshot: Snapshot) -> Table:
    return {f"{n}[{e}]": [] for n, entries in snapshot.optimizer_state.items() for e in entries}
