"""RNG: random streams over ranks and over a resume."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.run import Moment
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule


def _needs_policy(case: Case, *policies: str) -> None:
    if case.declared.rng_policy not in policies:
        raise NotCovered(f"rng_policy is {case.declared.rng_policy!r}")


def draws_noise(case: Case, run: str) -> frozenset[str]:
    """The streams of torch that `run` draws noise from, on any rank.

    Noise is drawn all along; what moves a stream in one stretch of training and not in the next is
    an order of samples, or the like, which ranks may well draw alike.

    Raises:
        NotCovered: there are none, so that two equal streams do no harm.
    """
    evidence = case[run]
    stretches = ["next"]
    if all("rest" in journal.losses for journal in evidence.ranks):
        stretches.append("rest")
    moved = [set().union(*evidence.fact(f"streams moved {stretch}")) for stretch in stretches]
    noise = set.intersection(*moved) & {"torch", "cuda"}
    if not noise:
        raise NotCovered("training draws no noise from torch's global streams")
    return frozenset(noise)


@rule(
    "RNG-01",
    "streams come back",
    statement="With rng_policy 'restore', every random stream of every rank is after a load what"
    " it was on that rank when saved.",
    why="Dropout and noise then repeat the uninterrupted run's; anything else is another run.",
    cause="Rank 0's streams stored for all, NumPy or random forgotten, or seeding after the load.",
    runs=("saving", "resumed"),
)
def streams_return(case: Case) -> Iterator[Finding]:
    _needs_policy(case, "restore")
    saved, loaded = case["saving"].at("before save"), case["resumed"].at("after load")
    moments = (case["resumed"].at("start"), saved, loaded)
    if all(a.rng == b.rng == c.rng for a, b, c in zip(*(m.ranks for m in moments), strict=True)):
        raise NotCovered("no stream has moved before the save, so there is nothing to put back")
    owners = owners_of(saved)
    for a, b in zip(saved.ranks, loaded.ranks, strict=True):
        for stream, state in a.rng.items():
            if b.rng.get(stream) == state:
                continue
            whose = owners.get((stream, b.rng.get(stream, "")))
            seen = "another state" if whose is None else f"that of rank {whose}"
            yield Violation(
                f"{stream} random stream", "the saved state", seen, loaded.label, ranks=(b.rank,)
            )


def owners_of(moment: Moment) -> dict[tuple[str, str], int]:
    """By stream and state the first rank that has it."""
    owners: dict[tuple[str, str], int] = {}
    for snapshot in moment.ranks:
        for stream, state in snapshot.rng.items():
            owners.setdefault((stream, state), snapshot.rank)
    return owners


@rule(
    "RNG-02",
    "a resume replays nothing",
    statement="With rng_policy 'offset', no rank's stream is after a load in a state that this or"
    " another rank's stream was in at the start, at the save, or before the load.",
    why="A replayed stream draws the noise again that was drawn before, on other samples.",
    cause="Seeding with the plain seed again, or with sums such as seed + rank + step, which give"
    " rank 1 at step 2 what rank 2 had at step 1; or no seeding at all.",
    runs=("uninterrupted", "saving", "resumed"),
)
def nothing_replayed(case: Case) -> Iterator[Finding]:
    _needs_policy(case, "offset")
    draws_noise(case, "uninterrupted")
    loaded = case["resumed"].at("after load")
    earlier = (
        case["uninterrupted"].at("start"),
        case["uninterrupted"].at("after first step"),
        case["saving"].at("before save"),
        case["resumed"].at("start"),
    )
    for moment in earlier:
        owners = owners_of(moment)
        for snapshot in loaded.ranks:
            # One stream that moves is enough for a trainer that draws from that one only.
            replayed = {
                stream: owners[stream, state]
                for stream, state in snapshot.rng.items()
                if (stream, state) in owners
            }
            if "torch" in replayed:
                yield Violation(
                    "torch random stream",
                    "a fresh state",
                    f"that of rank {replayed['torch']}, {moment.label}",
                    loaded.label,
                    ranks=(snapshot.rank,),
                )


@rule(
    "RNG-03",
    "data-parallel ranks draw their own noise",
    statement="After a load, ranks that work on different samples have different torch streams.",
    why="The same noise on every rank halves, or worse, the noise that regularises.",
    cause="One seed for all ranks, or rank 0's streams broadcast with the rest of the state.",
    runs=("uninterrupted", "resumed"),
    needs=("sample_ids",),
    events=("several ranks",),
)
def own_noise(case: Case) -> Iterator[Finding]:
    _needs_policy(case, "offset", "restore")
    noise = draws_noise(case, "uninterrupted")
    loaded = case["resumed"].at("after load")
    ids = case["uninterrupted"].fact("sample_ids next")
    first: dict[tuple[str, str], int] = {}
    states = [
        (snapshot.rank, stream, snapshot.rng[stream])
        for snapshot in loaded.ranks
        for stream in sorted(noise & snapshot.rng.keys())
    ]
    for rank, stream, state in states:
        other = first.setdefault((stream, state), rank)
        if ids[other] != ids[rank]:
            yield Violation(
                f"{stream} random stream",
                "a state of its own",
                f"that of rank {other}, which has other samples",
                loaded.label,
                ranks=(rank,),
            )


@rule(
    "RNG-04",
    "control scalars agree",
    statement="Random scalars that steer control flow are the same on all ranks.",
    why="Ranks that loop another number of times enter other collectives: a hang.",
    cause="Drawing on each rank from its own stream instead of broadcasting one draw.",
    runs=("uninterrupted", "resumed"),
    needs=("control_scalars",),
)
def control_agrees(case: Case) -> Iterator[Finding]:
    for run in ("uninterrupted", "resumed"):
        values = case[run].fact("control_scalars next")
        odd = tuple(rank for rank, value in enumerate(values) if value != values[0])
        if odd:
            yield Violation(
                "control scalars",
                f"{dict(values[0])} as on rank 0",
                f"{dict(values[odd[0]])}",
                f"{run}: next step",
                ranks=odd,
            )
        if not values[0]:
            yield Violation("control scalars", "some", "none", run)
