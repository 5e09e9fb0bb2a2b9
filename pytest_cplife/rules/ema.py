"""EMA: averaged weights follow their rule, and survive the lifecycle."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.run import Moment
from pytest_cplife.rules.averaged_buffers import buffer_oracle
from pytest_cplife.rules.averages import infer_decay, oracle, trajectory
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import compare, replicas_agree, same_layout
from pytest_cplife.rules.files import file_averages
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule


def _state(case: Case, run: str, moment: str) -> Moment:
    state = case[run].at(moment)
    if state.ranks[0].ema is None:
        raise NotCovered("the run has no averaged weights (TrainingRun.ema is None)")
    return state


@rule(
    "EMA-01",
    "the average follows its rule",
    statement="At each step the averaged weights are what the rule (EmaSpec, or the decay that the"
    " first update shows) makes of the live weights, over full tensors, in float64, within the"
    " rounding of the shadow's dtype.",
    why="An average over the wrong bytes is the model that is evaluated and shipped.",
    cause="Averaging local shards into a full shadow, updating per micro-batch, a shadow in bf16"
    " that stands still, or a decay with another warm-up than declared.",
    runs=("uninterrupted",),
    events=("weights moved",),
)
def follows_rule(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    _state(case, "uninterrupted", "start")
    yield from oracle(run.assembler, trajectory(run), case.declared.ema_spec)


@rule(
    "EMA-02",
    "one decay for all tensors",
    statement="The decay that each update shows is the same over all tensors.",
    why="A decay that depends on the tensor or the rank is an average of no rule.",
    cause="Some tensors updated twice (a tied pair), or never, or with a local step count.",
    runs=("uninterrupted",),
    events=("weights moved",),
)
def one_decay(case: Case) -> Iterator[Finding]:
    _state(case, "uninterrupted", "start")
    run = case["uninterrupted"]
    yield from infer_decay(run.assembler, trajectory(run))


@rule(
    "EMA-03",
    "the average comes back",
    statement="After a load the averaged weights are those that were saved, bit for bit, of the"
    " kind, mesh, placements and device that they had, and not the live ones.",
    why="A lost average starts again from raw weights, and the best checkpoint is never reached"
    " again.",
    cause="An average created after the load, an activation flag that is not in the file, or live"
    " and averaged weights exchanged.",
    runs=("saving", "resumed"),
    events=("load changes weights",),
)
def average_returns(case: Case) -> Iterator[Finding]:
    saved, loaded = _state(case, "saving", "before save"), case["resumed"].at("after load")
    assembler = case["saving"].assembler
    yield from compare(case, assembler, "averages", saved.ema, loaded.ema, moment=loaded.label)
    yield from same_layout(saved.ema, loaded.ema, moment=loaded.label)
    same = [name for name in saved.ema if name in saved.parameters and _same(case, saved, name)]
    if len(same) == len(saved.ema):
        yield Violation("all averages", "other than the live weights", "equal", saved.label)


def _same(case: Case, state: Moment, name: str) -> bool:
    assembler = case["saving"].assembler
    return assembler.digest(state.ema[name]) == assembler.digest(state.parameters[name])


@rule(
    "EMA-04",
    "the average equals the uninterrupted run's",
    statement="At the end the resumed run's averaged weights equal the uninterrupted run's.",
    why="A counter or flag that did not come back shows at the next update, not at the load.",
    cause="The number of updates, the warm-up or the first-update flag restarts.",
    runs=("uninterrupted", "resumed"),
    budgeted=True,
)
def average_equal(case: Case) -> Iterator[Finding]:
    for moment in ("after next step", "end"):
        a, b = _state(case, "uninterrupted", moment), case["resumed"].at(moment)
        yield from compare(
            case,
            case["resumed"].assembler,
            "averages",
            a.ema,
            b.ema,
            moment=b.label,
            noisy_at=moment,
        )


@rule(
    "EMA-05",
    "the average has its own storage",
    statement="No averaged tensor shares storage with a live parameter or with another average.",
    why="An average that is the live weight follows it at once and averages nothing.",
    cause="A shallow copy of the model, or state_dict() without clone().",
    runs=("uninterrupted",),
)
def own_storage(case: Case) -> Iterator[Finding]:
    state = _state(case, "uninterrupted", "at save point")
    for snapshot in state.ranks:
        live = {record.alias: name for name, record in snapshot.parameters.items()}
        seen: dict[int, str] = {}
        for name, record in (snapshot.ema or {}).items():
            if record.local_numel == 0:
                continue
            # Averages may well be views of one flat buffer; one object of two names is no copy.
            other = live.get(record.alias) or seen.get(record.identity)
            if other is not None:
                yield Violation(
                    name,
                    "storage of its own",
                    f"that of {other}",
                    state.label,
                    ranks=(snapshot.rank,),
                )
            seen[record.identity] = name


@rule(
    "EMA-06",
    "averages agree over replicas",
    statement="Ranks that ought to hold the same bytes of an average do, at the save and after a"
    " load.",
    why="A file keeps one of them.",
    cause="Updating, or loading, on rank 0 only.",
    runs=("saving", "resumed"),
    events=("several ranks",),
)
def average_replicas(case: Case) -> Iterator[Finding]:
    for run, moment in (("saving", "before save"), ("resumed", "after load")):
        state = _state(case, run, moment)
        yield from replicas_agree(state.ema, moment=state.label)


@rule(
    "EMA-07",
    "the average covers the trainable weights",
    statement="The averaged weights have the FQNs of trainable parameters, one name per tied pair,"
    " and leave none out.",
    why="A weight without an average is evaluated raw among averaged ones.",
    cause="Names of another wrapper that match nothing and are skipped.",
    runs=("uninterrupted",),
)
def covers_weights(case: Case) -> Iterator[Finding]:
    state = _state(case, "uninterrupted", "at save point")
    for snapshot in state.ranks:
        averages = snapshot.ema or {}
        known = snapshot.parameters.keys() | snapshot.buffers.keys()
        for name in sorted(averages.keys() - known):
            yield Violation(
                name,
                "the FQN of a parameter or buffer",
                "no such FQN",
                state.label,
                ranks=(snapshot.rank,),
            )
        covered = {snapshot.parameters[n].identity for n in averages if n in snapshot.parameters}
        for name, record in snapshot.parameters.items():
            if record.requires_grad and record.identity not in covered:
                yield Violation(name, "an average", "none", state.label, ranks=(snapshot.rank,))


@rule(
    "EMA-12",
    "the file holds the averages",
    statement="Every averaged tensor is in the file, plain, in full shape and with the live value,"
    " bit for bit.",
    why="The average is what is evaluated and shipped, and nothing can make it again.",
    cause="Rank 0's shards of the shadow for the whole, a wrapper's names, or a shadow written"
    " at another time than the weights.",
    runs=("saving", "files"),
)
def averages_in_file(case: Case) -> Iterator[Finding]:
    run = case["saving"]
    file, live = case["files"].file("saved"), run.at("before save")
    yield from file_averages(case, file, run, live, "file")


@rule(
    "EMA-13",
    "averaged buffers follow their rule",
    statement="Buffers in the average are averaged, copied or left alone, as EmaSpec says for their"
    " kind; without one, all of a kind alike.",
    why="Stale running statistics under averaged weights are a model that never was.",
    cause="An average over parameters only, a mean of integers, or a copy that is made at the start"
    " and never again.",
    runs=("uninterrupted",),
    events=("weights moved",),
)
def buffers_follow_rule(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    _state(case, "uninterrupted", "start")
    yield from buffer_oracle(run.assembler, trajectory(run), case.declared.ema_spec)
