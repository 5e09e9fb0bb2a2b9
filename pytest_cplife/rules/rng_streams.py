"""RNG: streams over several resumes and topologies, and the noise that is drawn from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_cplife.evidence.records import DROPPED, UNTOLD, NoiseRecord
from pytest_cplife.evidence.run import Moment
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.rng import draws_noise

_STEPS = 10_000_000
"""A run that is longer than this may meet a seed again."""
_ENOUGH = 128
"""Elements of a mask above which two that are equal have not come out so by chance."""


@rule(
    "RNG-05",
    "resumes at other steps draw other noise",
    statement="With rng_policy 'offset', no rank's stream after a resume is one that any rank has"
    " after a resume at another step, and seeds that are linear in rank and step cannot meet"
    " within ten million steps.",
    why="What rank 1 draws at one step rank 0 draws at the next, and so on for the whole run.",
    cause="A sum of seed, rank and step, however wide its strides; hash them instead.",
    runs=("rewound", "resumed", "relayed again"),
    events=("several ranks",),
)
def resumes_differ(case: Case) -> Iterator[Finding]:
    if case.declared.rng_policy != "offset":
        raise NotCovered(f"rng_policy is {case.declared.rng_policy!r}")
    if case.declared.save_points != "any":
        raise NotCovered(f"save_points is {case.declared.save_points!r}")
    draws_noise(case, "resumed")
    names = ("rewound", "resumed", "relayed again")
    moments = {name: case[name].at("after load") for name in names}
    owners: dict[int, tuple[str, int]] = {}
    met = False
    for name, moment in moments.items():
        for snapshot in moment.ranks:
            run, rank = owners.setdefault(snapshot.seed, (name, snapshot.rank))
            if run != name:
                met = True
                step = moments[run].ranks[0].counters["global_step"]
                yield Violation(
                    "torch random stream",
                    "a seed of its own",
                    f"that of rank {rank} at step {step}",
                    moment.label,
                    ranks=(snapshot.rank,),
                )
    if not met:
        yield from _bound_to_meet(list(moments.values()))


def _bound_to_meet(moments: Sequence[Moment]) -> Iterator[Finding]:
    """Find seeds whose differences over ranks and over steps are constant, and so coincide."""
    for first, second in pairwise(moments):
        a, b = first.ranks[0].counters, second.ranks[0].counters
        steps = b["global_step"] - a["global_step"]
        if a["epoch"] != b["epoch"] or steps <= 0:
            continue
        by_rank = Counter(y.seed - x.seed for m in (first, second) for x, y in _pairs(m))
        by_step = {y.seed - x.seed for x, y in zip(first.ranks, second.ranks, strict=True)}
        if len(by_rank) > 1 or len(by_step) > 1:
            continue
        over_ranks, over_steps = next(iter(by_rank)), next(iter(by_step))
        if not over_ranks or not over_steps or over_steps % steps:
            continue
        stride = over_steps // steps
        for apart in range(1, len(first.ranks)):
            distance, rest = divmod(apart * over_ranks, stride)
            if not rest and abs(distance) <= _STEPS:
                yield Violation(
                    "torch random stream",
                    "seeds that never meet",
                    f"rank {apart} has at each step the seed of rank 0 {abs(distance)} steps away",
                    second.label,
                    ranks=(apart,),
                )


def _pairs(moment: Moment) -> Iterator[tuple[Snapshot, Snapshot]]:
    return pairwise(moment.ranks)


@rule(
    "RNG-06",
    "streams follow one policy on another mesh",
    statement="After a load from another mesh all ranks have fresh streams, or, where the policy is"
    " 'restore', all have their own back: none has another rank's, no two that work on different"
    " samples have one stream, and a second such load gives the same.",
    why="Ranks that draw fresh noise beside ranks that repeat old noise are a third, unnamed"
    " policy, and no failure can be repeated.",
    cause="Streams restored where this rank's number is in the file and left alone elsewhere, or"
    " fresh seeds from the clock.",
    runs=("uninterrupted", "saving", "crossed"),
)
def one_policy(case: Case) -> Iterator[Finding]:
    policy = case.declared.rng_policy
    if policy == "none":
        raise NotCovered("rng_policy is 'none'")
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to load from")
    draws_noise(case, "uninterrupted")
    loaded = case["crossed"].at("after load")
    saved = [s.rng["torch"] for s in case["saving of partner"].at("before save").ranks]
    moment = f"crossed from {case.partner}: after load"
    streams = [snapshot.rng["torch"] for snapshot in loaded.ranks]
    own = [r for r, stream in enumerate(streams) if stream in saved[r : r + 1]]
    fresh = [r for r, stream in enumerate(streams) if stream not in saved]
    wrong = {r for r in range(len(streams)) if r not in own and r not in fresh}
    if policy == "offset":
        wrong |= set(own)
    elif own and fresh:
        wrong |= set(own if len(own) < len(fresh) else fresh)
    for rank in sorted(wrong):
        seen = "a fresh stream"
        if streams[rank] in saved:
            seen = f"the saved stream of rank {saved.index(streams[rank])}"
        wanted = "a fresh stream" if policy == "offset" else "the policy of the other ranks"
        yield Violation("torch random stream", wanted, seen, moment, ranks=(rank,))
    yield from _shared(case, streams, moment)
    again = case["crossed"].fact("streams again")
    odd = tuple(r for r, table in enumerate(again) if table["torch"] != streams[r])
    if odd:
        yield Violation(
            "torch random stream", "the same at a second load", "another", moment, ranks=odd
        )
    yield Measurement(f"ranks with a stream of their own back, of {len(streams)}", len(own), 0.0)


def _shared(case: Case, streams: Sequence[str], moment: str) -> Iterator[Violation]:
    tables = [journal.facts for journal in case["uninterrupted"].ranks]
    ids = [table.get("sample_ids next") for table in tables]
    if len(ids) != len(streams) or None in ids:
        return
    first: dict[str, int] = {}
    for rank, stream in enumerate(streams):
        other = first.setdefault(stream, rank)
        if ids[other] != ids[rank]:
            yield Violation(
                "torch random stream",
                "a stream of its own",
                f"that of rank {other}, which has other samples",
                moment,
                ranks=(rank,),
            )


@rule(
    "RNG-07",
    "shards draw their own noise and replicas the same",
    statement="In a step, ranks on which a dropout module gets the same input drop the same"
    " elements, and ranks on which it gets another input drop others.",
    why="Masks that repeat over shards are a pattern to be learnt; replicas that drop differently"
    " are no replicas any more.",
    cause="One seed for all ranks with activations cut over them, or one per rank where an"
    " activation is replicated.",
    runs=("parity",),
)
def own_masks(case: Case) -> Iterator[Finding]:
    run = case["parity"]
    heard: list[tuple[NoiseRecord, ...]] = run.fact("noise")
    if len(heard) == 1:
        raise NotCovered("one rank has no others to draw with")
    if not any(record.dropped for records in heard for record in records):
        raise NotCovered("no dropout module has dropped anything")
    compared = 0
    for rank in range(1, len(heard)):
        for other in range(rank):
            pairs = [
                (a, b)
                for a, b in zip(heard[other], heard[rank], strict=False)
                if a.module == b.module
            ]
            replicas = [(a, b) for a, b in pairs if a.given == b.given]
            shards = [(a, b) for a, b in pairs if a.given != b.given]
            compared += len(pairs)
            for a, b in replicas:
                if a.mask != b.mask:
                    text = f"the mask of rank {other}, which has the same input"
                    yield Violation(a.module, text, "another mask", "parity", ranks=(rank,))
                    break
            if _one_stream(shards):
                text = f"those of rank {other}, which has another input"
                yield Violation("dropout noise", "masks of its own", text, "parity", ranks=(rank,))
    if not compared:
        raise NotCovered("no two ranks call the same dropout modules")
    yield Measurement(f"masks ({compared} pairs compared)", 0.0, 0.0)


def _one_stream(pairs: Sequence[tuple[NoiseRecord, NoiseRecord]]) -> bool:
    """Whether two ranks drop as if they drew from one stream.

    Where their parts are of unlike sizes, calls do not begin at the same place of the stream, so
    that all of one rank's calls are held against all of the other's.
    """
    if all(a.shape == b.shape for a, b in pairs):
        seen = sum(a.numel for a, _ in pairs if a.dropped)
        return seen >= _ENOUGH and all(a.mask == b.mask for a, b in pairs)
    one, other = (_drawn([pair[side] for pair in pairs]) for side in (0, 1))
    told = [(a, b) for a, b in zip(one, other, strict=False) if UNTOLD not in (a, b)]
    dropped = any(a == DROPPED for a, _ in told)
    return dropped and len(told) >= _ENOUGH and all(a == b for a, b in told)


def _drawn(records: Sequence[NoiseRecord]) -> bytes:
    """What was drawn one after the other, to the end or to where it was noted no longer."""
    drawn = b""
    for record in records:
        drawn += record.first
        if len(record.first) < record.numel:
            break
    return drawn
