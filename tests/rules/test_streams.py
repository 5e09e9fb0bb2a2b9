"""RNG over several resumes and meshes, and DATA over whole epochs, on evidence made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_cplife.evidence.records import DROPPED, KEPT, UNTOLD, NoiseRecord, ValueRecord
from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.rules.case import Case, NotCovered
from tests.rules.builders import Lab, step_of, subjects, violations


def resumes(lab: Lab, *seeds: Sequence[int], epochs: Sequence[int] = (0, 0, 1)) -> Case:
    """Resumes at steps 0, 3 and 4 with the given seeds of their ranks."""
    runs = []
    names = ("rewound", "resumed", "relayed again")
    for name, step, epoch, own in zip(names, (0, 3, 4), epochs, seeds, strict=True):
        seen = lab.snapshots(counters={"global_step": step, "epoch": epoch})
        seen = [replace(s, seed=seed) for s, seed in zip(seen, own, strict=True)]
        moved = {"streams moved next": [("torch",)] * 2}
        runs.append(lab.run(name, {"after load": seen}, facts=moved))
    return lab.case(*runs, rng_policy="offset")


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (((91, 17), (402, 8), (33, 71)), []),
        (((0, 1), (3, 4), (4, 5)), ["that of rank 1 at step 3"]),
        (
            ((0, 100), (3, 103), (5, 105)),
            ["rank 1 has at each step the seed of rank 0 100 steps away"],
        ),
        (((0, 7), (6, 13), (8, 15)), []),  # 2 per step, 7 per rank: odd and even never meet
        (((0, 10**9), (3, 10**9 + 3), (4, 10**9 + 4)), []),
        (((5, 9), (5, 9), (1, 2)), ["that of rank 0 at step 0", "that of rank 1 at step 0"]),
    ],
    ids=["hashed", "neighbours", "a stride apart", "never", "too far", "not seeded"],
)
def test_seeds_of_resumes(lab: Lab, seeds: Any, said: list[str]) -> None:
    assert [v.observed for v in violations("RNG-05", resumes(lab, *seeds))] == said


def test_seeds_of_two_epochs_say_nothing_of_a_step(lab: Lab) -> None:
    case = resumes(lab, (0, 100), (3, 103), (5, 105), epochs=(0, 1, 2))
    assert violations("RNG-05", case) == []
    for declared in ({"rng_policy": "restore"}, {"save_points": "epoch_end"}):
        with pytest.raises(NotCovered):
            violations("RNG-05", replace(case, declared=replace(case.declared, **declared)))


def crossed(lab: Lab, policy: str, loaded: Sequence[str], again: Sequence[str] = ()) -> Case:
    def seen(streams: Sequence[str]) -> Any:
        return lab.snapshots(rng=[{"torch": stream} for stream in streams])

    digests = [{"torch": stream} for stream in again or loaded]
    case = lab.case(
        lab.run(
            "uninterrupted",
            facts={"sample_ids next": [(0,), (1,)], "streams moved next": [("torch",)] * 2},
        ),
        lab.run("saving", {"before save": seen(["s0", "s1"])}),
        lab.run("crossed", {"after load": seen(loaded)}, facts={"streams again": digests}),
        partner="cp=2",
        rng_policy=policy,
    )
    return replace(case, runs={**case.runs, "saving of partner": case["saving"]})


@pytest.mark.parametrize(
    ("policy", "loaded", "ranks"),
    [
        ("offset", ["n0", "n1"], []),
        ("offset", ["s0", "n1"], [(0,)]),
        ("offset", ["n", "n"], [(1,)]),
        ("restore", ["n0", "n1"], []),
        ("restore", ["s0", "s1"], []),
        ("restore", ["s0", "n1"], [(1,)]),
        ("restore", ["s1", "s0"], [(0,), (1,)]),
    ],
)
def test_one_policy(lab: Lab, policy: str, loaded: list[str], ranks: list[Any]) -> None:
    assert [v.ranks for v in violations("RNG-06", crossed(lab, policy, loaded))] == ranks


def test_a_second_load_gives_the_same(lab: Lab) -> None:
    case = crossed(lab, "offset", ["n0", "n1"], ["n0", "x"])
    assert [v.ranks for v in violations("RNG-06", case)] == [(1,)]


def heard(
    given: str, mask: str, shape: tuple[int, ...] = (16, 16), dropped: int = 9
) -> NoiseRecord:
    """Masks of one name are the beginnings of one stream; a question mark tells nothing."""
    numel = math.prod(shape)
    told = [UNTOLD if c == "?" else DROPPED if c in "mx" else KEPT for c in mask]
    return NoiseRecord("drop", shape, given, mask, dropped, bytes(told * numel)[:numel])


@pytest.mark.parametrize(
    ("one", "other", "broken"),
    [
        (heard("x", "m"), heard("x", "m"), []),
        (heard("x", "m"), heard("x", "n"), ["drop"]),
        (heard("x", "m"), heard("y", "n"), []),
        (heard("x", "m"), heard("y", "m"), ["dropout noise"]),
        (heard("x", "m", (3,)), heard("y", "m", (3,)), []),
        (heard("x", "abm"), heard("y", "abm", (8, 16)), ["dropout noise"]),
        (heard("x", "abm"), heard("y", "a?m", (16, 15)), ["dropout noise"]),
        (heard("x", "abm"), heard("y", "a?m", (8, 16)), []),
        (heard("x", "abm"), heard("y", "amb", (8, 16)), []),
        (heard("x", "ab"), heard("y", "ab", (8, 16)), []),
    ],
    ids=[
        "replicas",
        "torn replicas",
        "shards",
        "one mask",
        "by chance",
        "one stream in uneven shards",
        "one stream with gaps",
        "too many gaps",
        "two streams in uneven shards",
        "nothing dropped there",
    ],
)
def test_masks(lab: Lab, one: NoiseRecord, other: NoiseRecord, broken: list[str]) -> None:
    run = lab.run("parity", facts={"noise": [(one,), (other,)]})
    assert subjects("RNG-07", lab.case(run)) == broken


def test_no_masks(lab: Lab) -> None:
    silent = heard("x", "m", dropped=0)
    for noise in ([(), ()], [(silent,), (silent,)]):
        with pytest.raises(NotCovered):
            violations("RNG-07", lab.case(lab.run("parity", facts={"noise": noise})))


def test_masks_that_no_two_ranks_have(lab: Lab) -> None:
    """A rule that has compared nothing says so."""
    strange = replace(heard("x", "m"), module="other")
    noise = [(heard("x", "m"),), (strange,)]
    with pytest.raises(NotCovered, match="the same dropout modules"):
        violations("RNG-07", lab.case(lab.run("parity", facts={"noise": noise})))


def test_calls_in_uneven_shards_are_one_stream(lab: Lab) -> None:
    """Later calls begin elsewhere in the stream; that of the first alone would tell too little."""
    drawn = bytes(DROPPED if n % 7 in (1, 4) else KEPT for n in range(400))
    sizes = ((70, 70), (60, 60))
    noise = [
        tuple(
            replace(heard(f"{size} {at}", "m", (size,)), first=drawn[at : at + size])
            for at, size in zip((0, own[0]), own, strict=True)
        )
        for own in sizes
    ]
    run = lab.run("parity", facts={"noise": noise})
    assert subjects("RNG-07", lab.case(run)) == []
    longer = [
        (*calls, replace(calls[0], first=drawn[sum(own) :][: own[0]]))
        for calls, own in zip(noise, sizes, strict=True)
    ]
    run = lab.run("parity", facts={"noise": longer})
    assert subjects("RNG-07", lab.case(run)) == ["dropout noise"]


def epochs(lab: Lab, resumed: dict[int, Any], lr: dict[int, str] | None = None) -> Case:
    """Epochs of two steps, stopped after the first; each step takes two samples, one per rank."""
    steps = range(1, 6)
    ids = {step: [(10 * step,), (10 * step + 1,)] for step in steps}

    def table(values: dict[int, str], origin: str) -> dict[str, list[list[StepRecord]]]:
        made = {}
        for step in steps:
            rate = {"lr": ValueRecord("float", values.get(step, f"0.{step}"))}
            made[f"step {step}{origin}"] = [[step_of({}, hyperparameters=(rate,))]] * 2
        return made

    return lab.case(
        lab.run(
            "epochs",
            facts={
                "stops": [((1,), 5, 2)] * 2,
                **{f"sample_ids step {step}": ids[step] for step in steps},
            },
            steps=table({}, ""),
        ),
        lab.run(
            "epochs resumed",
            facts={f"sample_ids step {s} from 1": resumed.get(s, ids[s]) for s in steps if s > 1},
            steps=table(lr or {}, " from 1"),
        ),
    )


@pytest.mark.parametrize(
    ("resumed", "broken"),
    [
        ({}, []),
        ({2: [(21,), (20,)]}, []),
        ({2: [(10,), (11,)]}, ["sample 10", "sample 11", "sample 20", "sample 21"]),
        ({4: [(), ()]}, ["sample 40", "sample 41"]),
        ({5: [(), ()]}, []),
    ],
    ids=["the same", "other ranks", "repeated", "left out", "beyond whole epochs"],
)
def test_each_sample_once(lab: Lab, resumed: dict[int, Any], broken: list[str]) -> None:
    assert subjects("DATA-03", epochs(lab, resumed)) == broken


def test_milestones(lab: Lab) -> None:
    assert violations("SCHED-03", epochs(lab, {})) == []
    found = violations("SCHED-03", epochs(lab, {}, {4: "0.9"}))
    assert {(v.subject, v.expected) for v in found} == {("optimizer 0 group 0: lr", "0.4 (float)")}
    still = {step: "0.1" for step in range(1, 6)}
    case = epochs(lab, {}, still)
    same = replace(case["epochs resumed"], name="epochs")
    for journal in same.ranks:
        journal.steps.update({k.removesuffix(" from 1"): v for k, v in journal.steps.items()})
        journal.facts["stops"] = ((1,), 5, 2)
    with pytest.raises(NotCovered):
        violations("SCHED-03", replace(case, runs={**case.runs, "epochs": same}))


@pytest.mark.parametrize(
    ("here", "broken"),
    [
        ([(1, 2), (3, 4)], []),
        ([(1, 2, 3, 4), (1, 2, 3, 4)], []),
        ([(1, 2), (3, 5)], ["sample 4", "sample 5"]),
        ([(1, 2, 3), (3, 4)], ["sample 3"]),
    ],
)
def test_samples_on_another_mesh(lab: Lab, here: Any, broken: list[str]) -> None:
    one = {"sample_ids onward 1": [(1, 2, 3, 4)] * 2, "sample_ids onward 2": [(9,)] * 2}
    there = lab.run("onward", facts=one)
    run = lab.run("crossed", facts={**one, "sample_ids onward 1": here})
    case = lab.case(run, partner="cp=2")
    assert (
        subjects("DATA-04", replace(case, runs={**case.runs, "onward of partner": there})) == broken
    )
