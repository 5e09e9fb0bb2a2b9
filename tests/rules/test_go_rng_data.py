"""GO, RNG, DATA and SERIAL on evidence made by hand: resumed against uninterrupted runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_cplife.evidence.records import GroupRecord, ValueRecord
from pytest_cplife.evidence.run import RunFailure, Unanswered
from pytest_cplife.rules.case import Case, NotCovered
from tests.rules.builders import Lab, file_of, findings, measured, subjects, violations

MOMENTS = ("after next step", "end")
PLAIN_LR = {"lr": ValueRecord("float", "0.1")}


def live(lab: Lab) -> dict[str, Any]:
    return {
        "parameters": {"a": lab.sharded([1.0, 2.0, 3.0])},
        "buffers": {"t": lab.plain([5.0])},
        "state": {"a": {"exp_avg": lab.sharded([6.0, 7.0, 8.0])}},
        "schedulers": [{"last_epoch": ValueRecord("int", "3")}],
        "groups": [GroupRecord(0, 0, ("a",), PLAIN_LR)],
    }


def pair(
    lab: Lab,
    losses: tuple[Sequence[float], Sequence[float]] = ((0.5, 0.25), (0.5, 0.25)),
    noise: Mapping[tuple[str, str], float] | None = None,
    **end: Any,
) -> Case:
    runs = []
    for name, seen, changes in (
        ("uninterrupted", losses[0], {}),
        ("resumed", losses[1], end),
    ):
        moments = {
            "after next step": lab.snapshots(**live(lab)),
            "end": lab.snapshots(**live(lab) | changes),
        }
        tables = {"next": [list(seen[:1])] * 2, "rest": [list(seen[1:])] * 2}
        runs.append(lab.run(name, moments, losses=tables))
    return lab.case(*runs, noise=noise)


EQUAL = ("GO-02", "GO-03", "GO-04", "GO-05", "GO-06")


@pytest.mark.parametrize("rule", EQUAL)
def test_equal_runs_pass(lab: Lab, rule: str) -> None:
    case = pair(lab)
    assert violations(rule, case) == []
    assert all("(0 compared)" not in m.what for m in measured(findings(rule, case)))


def test_what_differs_at_the_end(lab: Lab) -> None:
    for rule, end, broken in (
        ("GO-02", {"parameters": {"a": lab.sharded([1.0, 2.0, 4.0])}}, "a"),
        ("GO-03", {"state": {"a": {"exp_avg": lab.sharded([6.0, 7.0, 9.0])}}}, "a[exp_avg]"),
        ("GO-03", {"state": {}}, "a[exp_avg]"),
        ("GO-05", {"step": 9}, "global_step"),
        ("GO-05", {"schedulers": []}, "scheduler 0: last_epoch"),
        ("GO-05", {"groups": [GroupRecord(0, 0, ("a",), {})]}, "optimizer 0 group 0: lr"),
        ("GO-06", {"buffers": {"t": lab.plain([5.0], [6.0])}}, "t"),
    ):
        assert subjects(rule, pair(lab, **end)) == [broken]


def test_noise_is_allowed_for_at_its_moment_only(lab: Lab) -> None:
    end = {"parameters": {"a": lab.sharded([1.0, 2.0, 3.5])}}
    for noise, broken in (
        ({("end", "a"): 0.25}, []),
        ({("end", "a"): 0.1}, ["a"]),
        ({("after next step", "a"): 0.25}, ["a"]),
    ):
        assert subjects("GO-02", pair(lab, noise=noise, **end)) == broken


@pytest.mark.parametrize(
    ("losses", "noise", "broken"),
    [
        ((0.5, 0.25), {}, []),
        ((0.5, 0.5), {}, ["loss 2 after the load"]),
        ((0.5, 0.5), {("losses", "2"): 0.1}, []),
        ((0.5, 0.5), {("losses", "1"): 0.1}, ["loss 2 after the load"]),
        ((math.nan, 0.25), {}, ["loss 1 after the load"]),
        ((0.5,), {}, ["losses"]),
    ],
    ids=str,
)
def test_losses(
    lab: Lab, losses: Sequence[float], noise: Mapping[Any, float], broken: list[str]
) -> None:
    assert subjects("GO-04", pair(lab, ((0.5, 0.25), losses), noise)) == broken


def test_a_loss_that_is_no_number_in_both(lab: Lab) -> None:
    assert subjects("GO-04", pair(lab, ((math.nan, 0.25), (math.nan, 0.25))))


def test_a_resumed_run_completes(lab: Lab) -> None:
    failure = RunFailure("save again", (0,), "rank 0 raised", "")
    assert subjects("GO-01", lab.case(lab.run("resumed", failure=failure))) == [
        "save again (resumed)"
    ]
    with pytest.raises(Unanswered):
        violations("GO-01", lab.case(lab.run("resumed", held_back="saving")))


def test_the_checkpoint_is_not_the_end(lab: Lab) -> None:
    here, there = lab.snapshots(), lab.snapshots(parameters={"w": lab.sharded([1.0, 2.0, 4.0])})
    still = lab.run("uninterrupted", {"at save point": here, "end": here})
    moved = lab.run("uninterrupted", {"at save point": here, "end": there})
    assert subjects("GO-07", lab.case(still)) == ["all weights"]
    assert subjects("GO-07", lab.case(moved)) == []


def test_the_second_file(lab: Lab) -> None:
    run = lab.run("resumed", {"end": lab.snapshots(**live(lab))})
    good = {"a": lab.plain([1.0, 2.0, 3.0])[0], "t": lab.plain([5.0])[0]}
    for record, broken in (
        (file_of(good), []),
        (file_of(good, dtensors=("x",)), ["x"]),
        (file_of(good | {"a": lab.plain([1.0, 2.0, 0.0])[0]}), ["a"]),
    ):
        case = lab.case(run, lab.run("files", files={"saved again": record}, ranks=1))
        assert subjects("GO-08", case) == broken


def streams(lab: Lab, policy: str, loaded: Sequence[str], start: Sequence[str]) -> Case:
    def seen(states: Sequence[str]) -> Any:
        return lab.snapshots(rng=[{"torch": state, "python": "p"} for state in states])

    saved, fresh = seen(["s0", "s1"]), seen(start)
    return lab.case(
        lab.run(
            "uninterrupted",
            {"start": fresh, "after first step": seen(["f0", "f1"])},
            facts={"sample_ids next": [(0, 1), (2, 3)], "streams moved next": [("torch",)] * 2},
        ),
        lab.run("saving", {"before save": saved}),
        lab.run("resumed", {"start": fresh, "after load": seen(loaded)}),
        rng_policy=policy,
    )


@pytest.mark.parametrize(
    ("loaded", "seen"),
    [
        (["s0", "s1"], []),
        (["s0", "s0"], ["that of rank 0"]),
        (["s1", "s0"], ["that of rank 1", "that of rank 0"]),
        (["s0", "x"], ["another state"]),
    ],
)
def test_restored_streams(lab: Lab, loaded: list[str], seen: list[str]) -> None:
    found = violations("RNG-01", streams(lab, "restore", loaded, ["i0", "i1"]))
    assert [v.observed for v in found] == seen
    for policy in ("offset", "none"):
        with pytest.raises(NotCovered, match=policy):
            violations("RNG-01", streams(lab, policy, loaded, ["i0", "i1"]))


@pytest.mark.parametrize(
    ("loaded", "broken"),
    [
        (["n0", "n1"], 0),
        (["s0", "n1"], 1),
        (["n0", "s0"], 1),
        (["n0", "f0"], 1),
        (["i0", "i1"], 4),
    ],
)
def test_replayed_streams(lab: Lab, loaded: list[str], broken: int) -> None:
    assert len(violations("RNG-02", streams(lab, "offset", loaded, ["i0", "i1"]))) == broken


@pytest.mark.parametrize(("loaded", "broken"), [(["a", "b"], []), (["a", "a"], [(1,)])])
def test_own_noise(lab: Lab, loaded: list[str], broken: list[tuple[int, ...]]) -> None:
    found = violations("RNG-03", streams(lab, "offset", loaded, ["i0", "i1"]))
    assert [v.ranks for v in found] == broken


def test_ranks_with_the_same_samples_may_share_noise(lab: Lab) -> None:
    case = streams(lab, "offset", ["a", "a"], ["i0", "i1"])
    facts = {"sample_ids next": [(0, 1), (0, 1)], "streams moved next": [("torch",), ()]}
    same = lab.run("uninterrupted", facts=facts)
    assert violations("RNG-03", lab.case(same, case["resumed"])) == []


@pytest.mark.parametrize(
    ("following", "rest", "stream"),
    [
        ((), (), ""),
        (("numpy", "python"), ("numpy", "python"), ""),
        (("torch",), (), ""),
        (("torch", "numpy"), ("torch",), "torch"),
        (("torch", "cuda"), ("cuda",), "cuda"),
    ],
    ids=["nothing", "not torch's", "an order", "noise", "noise on the device"],
)
def test_only_streams_that_noise_is_drawn_from_count(
    lab: Lab, following: Any, rest: Any, stream: str
) -> None:
    moved = {"streams moved next": [following] * 2, "streams moved rest": [rest] * 2}
    equal = lab.snapshots(rng=[{"torch": "a", "cuda": "b"}] * 2)
    case = lab.case(
        lab.run(
            "uninterrupted",
            facts={"sample_ids next": [(0, 1), (2, 3)], **moved},
            losses={"next": [[0.5]] * 2, "rest": [[0.5]] * 2},
        ),
        lab.run("resumed", {"after load": equal}),
        rng_policy="offset",
    )
    if stream:
        assert subjects("RNG-03", case) == [f"{stream} random stream"]
    else:
        with pytest.raises(NotCovered, match="draws no noise"):
            violations("RNG-03", case)


def test_streams_that_never_moved_have_not_come_back(lab: Lab) -> None:
    with pytest.raises(NotCovered, match="no stream has moved"):
        violations("RNG-01", streams(lab, "restore", ["s0", "s1"], ["s0", "s1"]))
    assert violations("RNG-01", streams(lab, "restore", ["x", "s1"], ["s0", "s1"]))


@pytest.mark.parametrize(
    ("second", "broken"),
    [
        ((("recycles", 3.0),), []),
        ((("recycles", 4.0),), ["control scalars"]),
        ((), ["control scalars"]),
    ],
)
def test_control_scalars(lab: Lab, second: Any, broken: list[str]) -> None:
    good = (("recycles", 3.0),)
    runs = [
        lab.run(name, facts={"control_scalars next": [good, last]})
        for name, last in (("uninterrupted", good), ("resumed", second))
    ]
    assert subjects("RNG-04", lab.case(*runs)) == broken


def samples(lab: Lab, resumed: Sequence[Any], uninterrupted: Sequence[Any]) -> Case:
    runs = [
        lab.run(name, facts={"sample_ids next": ids, "sample_ids first": ids})
        for name, ids in (("uninterrupted", uninterrupted), ("resumed", resumed))
    ]
    return lab.case(*runs)


def test_the_data_goes_on(lab: Lab) -> None:
    good = [(4, 5), (6, 7)]
    assert violations("DATA-01", samples(lab, good, good)) == []
    (violation,) = violations("DATA-01", samples(lab, [(4, 5), (0, 1)], good))
    assert (violation.ranks, violation.observed) == ((1,), "0, 1")
    assert subjects("DATA-01", samples(lab, [(), ()], [(), ()])) == ["sample ids"]


@pytest.mark.parametrize(
    ("ids", "broken"),
    [
        ([(0, 1), (2, 3)], []),
        ([(0, 1, 2, 3), (0, 1, 2, 3)], []),
        ([(0, 1), (0, 1)], ["sample 2", "sample 3"]),
        ([(0, 1), (2, 9)], ["sample 3", "sample 9"]),
        ([(0, 1, 2), (2, 3)], ["sample 2"]),
    ],
    ids=str,
)
def test_the_global_batch(lab: Lab, ids: Sequence[Any], broken: list[str]) -> None:
    serial = lab.run("serial", facts={"sample_ids first": [(0, 1, 2, 3)]}, ranks=1)
    run = lab.run("parity", facts={"sample_ids first": ids})
    assert subjects("DATA-02", lab.case(serial, run)) == broken


def test_the_serial_model_loads_the_file(lab: Lab) -> None:
    for value, broken in (([1.0, 2.0, 3.0], []), ([1.0, 2.0, 0.0], ["a"])):
        build = {
            "parameters": {"a": lab.plain(value)[0]},
            "buffers": {"t": lab.plain([5.0])[0]},
        }
        build["state_dict"] = build["parameters"] | build["buffers"]
        case = lab.case(
            lab.run("saving", {"before save": lab.snapshots(**live(lab))}),
            lab.run("files", facts={"loaded serial": [build]}, phases=("load serial",), ranks=1),
        )
        assert subjects("SERIAL-01", case) == broken


def test_the_serial_model_repeats(lab: Lab) -> None:
    def build(value: float) -> dict[str, Any]:
        return {"parameters": {"a": lab.plain(value)[0]}, "buffers": {}}

    nothing: dict[str, Any] = {"parameters": {}, "buffers": {}}
    for first, second, broken in (
        (build(1.0), build(1.0), []),
        (build(1.0), build(2.0), ["a"]),
        (nothing, nothing, ["parameters"]),
    ):
        run = lab.run("serial", facts={"first build": [first], "second build": [second]}, ranks=1)
        assert subjects("SERIAL-02", lab.case(run)) == broken
