"""LOAD, OPT and SCHED on evidence made by hand: what comes back, and what does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.records import GroupRecord, ValueRecord
from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.rules.case import Case, NotCovered
from tests.evidence.layouts import replicate, shard
from tests.rules.builders import Lab, findings, measured, step_of, subjects, values, violations

TENTH, HALF = ValueRecord("float", "0.1"), ValueRecord("float", "0.5")


def live(lab: Lab) -> dict[str, Any]:
    return {
        "parameters": {"a": lab.sharded([1.0, 2.0, 3.0]), "b": lab.replicated([4.0])},
        "buffers": {"t": lab.plain([5.0])},
        "state": {"a": {"exp_avg": lab.sharded([6.0, 7.0, 8.0]), "step": lab.plain(3.0)}},
        "groups": [GroupRecord(0, 0, ("a", "b"), {"lr": TENTH})],
        "schedulers": [{"last_epoch": ValueRecord("int", "3")}],
    }


def resumed(lab: Lab, **after: Any) -> Case:
    saved = lab.run("saving", {"before save": lab.snapshots(**live(lab))})
    start = lab.snapshots(
        **live(lab) | {"parameters": {"a": lab.sharded([0.0, 0.0, 0.0]), "b": lab.plain([0.0])}}
    )
    loaded = lab.snapshots(**live(lab) | after)
    return lab.case(saved, lab.run("resumed", {"start": start, "after load": loaded}))


BITWISE = ("LOAD-02", "LOAD-04", "LOAD-07", "OPT-02", "OPT-04", "SCHED-01")
OTHERS = ("LOAD-05", "LOAD-06", "LOAD-10", "OPT-01", "OPT-03", "OPT-05", "OPT-07")


@pytest.mark.parametrize("rule", (*BITWISE, *OTHERS))
def test_what_comes_back_whole_passes(lab: Lab, rule: str) -> None:
    assert violations(rule, resumed(lab)) == []


@pytest.mark.parametrize("rule", BITWISE)
def test_something_was_compared(lab: Lab, rule: str) -> None:
    assert "(0 compared)" not in measured(findings(rule, resumed(lab)))[0].what


def test_weights(lab: Lab) -> None:
    weights = live(lab)["parameters"]
    lost = resumed(lab, parameters={"a": weights["a"]})
    assert subjects("LOAD-02", lost) == ["b"]
    wrong = resumed(lab, parameters={**weights, "a": lab.sharded([1.0, 2.0, 0.0])})
    assert subjects("LOAD-02", wrong) == ["a"]
    one = resumed(lab, parameters={**weights, "b": lab.other_bytes(weights["b"], 1, [0.0])})
    assert subjects("LOAD-02", one) == ["b"]
    assert subjects("LOAD-10", one) == ["b"]


def test_layouts(lab: Lab) -> None:
    run = resumed(lab, parameters={"a": lab.plain([1.0, 2.0, 3.0]), "b": lab.replicated([4.0])})
    # The run starts with "b" plain here, so that both have changed.
    assert subjects("LOAD-03", run) == ["a", "b"]
    moved = resumed(lab, buffers={"t": lab.plain([5.0], device="cuda:0")})
    assert "t" in subjects("LOAD-03", moved)


def test_memory_order_and_class(lab: Lab) -> None:
    records = {
        "a": lab.sharded([[1.0, 2.0], [3.0, 4.0]]),
        "b": lab.plain([[1.0], [2.0]]),
        "c": lab.plain(torch.zeros(0, 3)),
    }

    def case(name: str, **change: Any) -> Case:
        after = [records[name][0], replace(records[name][1], **change)]
        moments = {"start": records, "after load": {**records, name: after}}
        seen = {moment: lab.snapshots(parameters=each) for moment, each in moments.items()}
        return lab.case(lab.run("resumed", seen))

    (found,) = violations("LOAD-20", case("a", stride=(1, 2)))
    assert (found.subject, found.ranks) == ("a", (1,))
    assert (found.expected, found.observed) == (
        "DTensor of strides (2, 1)",
        "DTensor of strides (1, 2)",
    )
    assert subjects("LOAD-20", case("b", stride=(2, 1))) == ["b"]
    assert subjects("LOAD-20", case("b", type_name="Tied")) == ["b"]
    # Where a dimension has one element, or a tensor none, a stride says nothing.
    assert subjects("LOAD-20", case("b", stride=(1, 7))) == []
    assert subjects("LOAD-20", case("c", stride=(9, 9))) == []


def test_plain_buffers_come_back_as_the_first_ranks(lab: Lab) -> None:
    """Statistics of local batches differ; a plain file has room for one value."""
    case = resumed(lab)
    parted = lab.snapshots(**live(lab) | {"buffers": {"t": lab.plain([5.0], [6.0])}})
    saved = lab.run("saving", {"before save": parted})
    assert subjects("LOAD-04", lab.case(saved, case["resumed"])) == []
    for value in ([6.0], [7.0]):
        wrong = resumed(lab, buffers={"t": lab.plain([5.0], value)})
        assert subjects("LOAD-04", wrong) == ["t"]
    assert subjects("LOAD-04", resumed(lab, buffers={})) == ["t"]


@pytest.mark.parametrize("change", [{"dtype": "torch.bfloat16"}, {"requires_grad": False}], ids=str)
def test_attributes(lab: Lab, change: Mapping[str, Any]) -> None:
    weights = live(lab)["parameters"]
    changed = [weights["a"][0], replace(weights["a"][1], **change)]
    found = violations("LOAD-05", resumed(lab, parameters={**weights, "a": changed}))
    assert [(v.subject, v.ranks) for v in found] == [("a", (1,))]


def test_identity(lab: Lab) -> None:
    stranger = [GroupRecord(0, 0, ("a", "?(1,)"), {})]
    assert set(subjects("LOAD-06", resumed(lab, groups=stranger))) == {
        "b",
        "a tensor of shape (1,)",
    }
    tied = {name: lab.replicated([4.0], identity=9) for name in ("a", "b")}
    assert "a = b" in subjects("LOAD-06", resumed(lab, parameters=tied))


def test_counters(lab: Lab) -> None:
    assert subjects("LOAD-07", resumed(lab, step=0)) == ["global_step"]


def test_the_file(lab: Lab) -> None:
    for unchanged in (True, False):
        facts = {"file unchanged": [unchanged, True], "file kept": [True, True]}
        run = lab.run("resumed", facts=facts)
        assert subjects("LOAD-08", lab.case(run)) == ([] if unchanged else ["checkpoint"])


def crossed(lab: Lab, partner: str = "dp=2,tp=2", **after: Any) -> Case:
    other = lab.on("dp=2,tp=2")
    saved = other.run("saving", {"before save": other.snapshots(**live(other))})
    loaded = lab.snapshots(**live(lab) | after)
    phases = ("start", "load", "close")
    case = lab.case(lab.run("crossed", {"after load": loaded}, phases=phases), partner=partner)
    return replace(case, runs={**case.runs, "saving of partner": saved})


def test_another_mesh(lab: Lab) -> None:
    assert violations("LOAD-09", crossed(lab)) == []
    weights = live(lab)["parameters"]
    for after, broken in (
        ({"parameters": {**weights, "a": lab.sharded([1.0, 2.0, 2.0])}}, ["a"]),
        ({"buffers": {"t": lab.plain([6.0])}}, ["t"]),
        ({"state": {}}, ["a[exp_avg]", "a[step]"]),
        ({"step": 4}, ["global_step"]),
    ):
        assert subjects("LOAD-09", crossed(lab, **after)) == broken
    with pytest.raises(NotCovered, match="only one mesh"):
        violations("LOAD-09", crossed(lab, partner=""))


def test_missing_and_new_state(lab: Lab) -> None:
    full = live(lab)["state"]["a"]
    for state, subject, expected, observed in (
        ({}, "a", "exp_avg, step", "missing"),
        ({"a": {"step": full["step"]}}, "a", "exp_avg", "missing"),
        ({"a": {**full, "max": full["exp_avg"]}}, "a", "no such entry", "max"),
        ({"a": full, "b": {"step": full["step"]}}, "b", "no such entry", "step"),
    ):
        found = violations("OPT-01", resumed(lab, state=state))
        assert {(v.subject, v.expected, v.observed) for v in found} == {
            (subject, expected, observed)
        }
    half = {"a": {**full, "exp_avg": [full["exp_avg"][0], None]}}
    (violation,) = violations("OPT-01", resumed(lab, state=half))
    assert violation.ranks == (1,)


def test_state_values(lab: Lab) -> None:
    full = live(lab)["state"]["a"]
    for entries, broken in (
        ({**full, "exp_avg": lab.sharded([6.0, 7.0, 7.0])}, ["a[exp_avg]"]),
        ({**full, "step": lab.plain(0.0)}, ["a[step]"]),
        ({**full, "step": lab.plain(3.0, 0.0)}, ["a[step]"]),
        ({"step": full["step"]}, []),
    ):
        assert subjects("OPT-02", resumed(lab, state={"a": entries})) == broken


def test_state_that_lies_otherwise(lab: Lab) -> None:
    full = live(lab)["state"]["a"]
    for moment in (lab.plain([6.0, 7.0, 8.0]), lab.sharded([6.0, 7.0, 8.0], replicate())):
        case = resumed(lab, state={"a": {**full, "exp_avg": moment}})
        assert set(subjects("OPT-03", case)) == {"a[exp_avg]"}
    scalar = resumed(lab, state={"a": {**full, "step": lab.replicated(3.0)}})
    assert set(subjects("OPT-03", scalar)) == {"a[step]"}


def test_hyperparameters_and_groups(lab: Lab) -> None:
    def groups(*made: tuple[tuple[str, ...], dict[str, Any]]) -> list[GroupRecord]:
        return [GroupRecord(0, i, names, values) for i, (names, values) in enumerate(made)]

    for after, broken in (
        (groups((("a", "b"), {"lr": HALF})), ["optimizer 0 group 0: lr"]),
        (groups((("a", "b"), {})), ["optimizer 0 group 0: lr"]),
        (groups((("a", "b"), {"lr": TENTH, "x": HALF})), ["optimizer 0 group 0: x"]),
    ):
        assert subjects("OPT-04", resumed(lab, groups=after)) == broken
        assert subjects("OPT-05", resumed(lab, groups=after)) == []
    for after in (
        groups((("b", "a"), {"lr": TENTH})),
        groups((("a",), {"lr": TENTH})),
        groups((("a", "b"), {"lr": TENTH}), ((), {"lr": TENTH})),
        [],
    ):
        assert subjects("OPT-05", resumed(lab, groups=after))


def test_placeholders_have_no_state(lab: Lab) -> None:
    case = resumed(lab)
    held = lab.case(*case.runs.values(), placeholders=("a",))
    assert subjects("OPT-06", held) == ["a[exp_avg]", "a[step]"] * 2
    assert subjects("OPT-06", lab.case(*case.runs.values(), placeholders=("b",))) == []


@pytest.mark.parametrize("step", ["float", "double"])
def test_types_of_state(lab: Lab, step: str) -> None:
    full = live(lab)["state"]["a"]
    changed = {
        "float": values(ValueRecord("float", "3.0")),
        "double": lab.plain(3.0, dtype="torch.float64"),
    }
    case = resumed(lab, state={"a": {**full, "step": changed[step]}})
    assert subjects("OPT-07", case) == ["a[step]"] * 2


def test_ranks_with_state_of_other_parameters(lab: Lab) -> None:
    full = live(lab)["state"]
    half = {"a": full["a"], "b": {"step": [None, lab.plain(3.0)[1]]}}
    run = lab.run("saving", {"before save": lab.snapshots(**live(lab) | {"state": half})})
    assert subjects("OPT-08", lab.case(run)) == ["b[step]"]
    odd = {"a": {**full["a"], "step": lab.plain(3.0, 4.0)}}
    run = lab.run("saving", {"before save": lab.snapshots(**live(lab) | {"state": odd})})
    assert subjects("OPT-08", lab.case(run)) == ["a[step]"]


def test_schedules_come_back(lab: Lab) -> None:
    again = [{"last_epoch": ValueRecord("int", "0")}]
    assert subjects("SCHED-01", resumed(lab, schedulers=again)) == ["scheduler 0: last_epoch"]
    assert subjects("SCHED-01", resumed(lab, schedulers=[])) == ["scheduler 0: last_epoch"]


def schedule(lab: Lab, *steps: StepRecord) -> Case:
    good = [[step_of({}), step_of({})]] * 2
    runs = [
        lab.run(name, losses={"next": [[1.0]] * 2}, steps={"next": made})
        for name, made in (("uninterrupted", good), ("resumed", [list(steps)] * 2))
    ]
    return lab.case(*runs)


def test_schedules_go_on(lab: Lab) -> None:
    same, other = step_of({}), step_of({}, hyperparameters=({"lr": HALF},))
    assert subjects("SCHED-02", schedule(lab, same, same)) == []
    found = violations("SCHED-02", schedule(lab, same, other))
    assert {v.subject for v in found} == {"optimizer 0 group 0: lr"}
    assert "step 2 after the load" in found[0].moment
    assert set(subjects("SCHED-02", schedule(lab, same))) == {"optimizer steps"}
    bare = step_of({}, hyperparameters=({},))
    assert set(subjects("SCHED-02", schedule(lab, same, bare))) == {"optimizer 0 group 0: lr"}


def still(lab: Lab, value: float, lr: str) -> Case:
    moments = {
        name: lab.snapshots(parameters={"a": lab.sharded([at, 2.0], shard(0))})
        for name, at in (("after load", 1.0), ("after still step", value))
    }
    step = step_of({}, hyperparameters=({"lr": ValueRecord("float", lr)},))
    phases = ("start", "load", "predict", "still step", "close")
    return lab.case(lab.run("still", moments, steps={"still": [[step]] * 2}, phases=phases))


def test_a_step_of_no_length(lab: Lab) -> None:
    assert subjects("LOAD-11", still(lab, 1.0, "0.0")) == []
    assert subjects("LOAD-11", still(lab, 0.5, "0.0")) == ["a"]
    with pytest.raises(NotCovered, match="its own lr"):
        violations("LOAD-11", still(lab, 0.5, "0.1"))


@pytest.mark.parametrize(
    ("count", "found"), [(1_000_003.0, []), (1_000_448.0, ["a[step]"]), (None, ["a[step]"])]
)
def test_late_step_counts(lab: Lab, count: float | None, found: list[str]) -> None:
    def at(value: float | None) -> Any:
        state = {} if value is None else {"a": {"step": lab.plain(value)}}
        return lab.snapshots(**live(lab) | {"state": state})

    moments = {"late": at(1_000_003.0), "late: after load": at(count)}
    assert subjects("OPT-12", lab.case(lab.run("late", moments))) == found
