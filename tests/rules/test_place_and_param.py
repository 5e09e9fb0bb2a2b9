"""PLACE and PARAM on evidence made by hand: where tensors lie and what they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_cplife.evidence.records import GroupRecord, TensorRecord
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Case
from tests.evidence.layouts import replicate, shard
from tests.rules.builders import Lab, subjects, violations

MOMENTS = ("start", "at save point", "end")
Columns = Mapping[str, Sequence[Any]]


def live(lab: Lab, parameters: Columns, facts: Mapping[str, Any] | None = None, **more: Any) -> Any:
    seen = lab.snapshots(parameters=parameters, **more)
    facts = {"device": ["cpu"] * lab.ranks, **(facts or {})}
    return lab.run("uninterrupted", dict.fromkeys(MOMENTS, seen), facts=facts)


def serial(
    lab: Lab, parameters: Mapping[str, TensorRecord], **buffers: TensorRecord
) -> RunEvidence:
    named = {
        name: record if record.identity else replace(record, identity=position)
        for position, (name, record) in enumerate(parameters.items(), start=1)
    }
    build = {"parameters": named, "buffers": buffers, "state_dict": named | buffers}
    return lab.run("serial", facts={"first build": [build], "second build": [build]}, ranks=1)


def good(lab: Lab) -> Columns:
    return {"a": lab.sharded([1.0, 2.0, 3.0]), "b": lab.sharded([[4.0]])}


def mirrored(lab: Lab, parameters: Columns, **more: Any) -> Case:
    one = {"a": lab.plain([1.0, 2.0, 3.0])[0], "b": lab.plain([[4.0]])[0]}
    return lab.case(serial(lab, one), live(lab, parameters, **more))


MIRROR_RULES = ("PARAM-01", "PARAM-02", "PARAM-03", "PARAM-05", "PARAM-08")
PLACE_RULES = ("PLACE-02", "PLACE-03", "PLACE-04", "PLACE-06")


@pytest.mark.parametrize("rule", (*MIRROR_RULES, *PLACE_RULES))
def test_what_mirrors_the_serial_model_passes(lab: Lab, rule: str) -> None:
    assert violations(rule, mirrored(lab, good(lab))) == []


def test_plain_parameters_need_to_be_declared(lab: Lab) -> None:
    run = live(lab, {"a": lab.plain(1.0), "m.b": lab.plain(1.0), "m.c": lab.sharded([1.0])})
    assert subjects("PLACE-02", lab.case(run)) == ["a", "m.b"] * 2
    assert subjects("PLACE-02", lab.case(run, plain_parameters=("m",))) == ["a"] * 2
    assert subjects("PLACE-02", lab.case(run, plain_parameters=("",))) == []
    frozen = live(lab, {"a": lab.plain(1.0, requires_grad=False)})
    assert subjects("PLACE-02", lab.case(frozen)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "torch.float64"},
        {"shape": (4,)},
        {"placements": (replicate(),)},
        {"requires_grad": False},
        {"kind": "plain", "type_name": "Tensor", "mesh": None},
    ],
    ids=str,
)
def test_ranks_that_disagree(lab: Lab, change: Mapping[str, Any]) -> None:
    records = lab.sharded([1.0, 2.0, 3.0])
    case = lab.case(live(lab, {"a": [records[0], replace(records[1], **change)]}))
    found = violations("PLACE-03", case)
    assert {(v.subject, v.ranks) for v in found} == {("a", (1,))}


def test_a_parameter_that_one_rank_lacks(lab: Lab) -> None:
    records = lab.sharded([1.0, 2.0, 3.0])
    found = violations("PLACE-03", lab.case(live(lab, {"a": records, "b": [records[0], None]})))
    assert {(v.subject, v.observed, v.ranks) for v in found} == {("b", "missing", (1,))}


def test_a_shard_of_another_size(lab: Lab) -> None:
    """What DTensor.from_local makes of uneven shards without a global shape."""
    records = lab.sharded([1.0, 2.0, 3.0])
    bad = [replace(records[0], shape=(4,)), replace(records[1], shape=(4,))]
    found = violations("PLACE-04", lab.case(live(lab, {"a": bad})))
    assert found[0].observed == "rank 1 holds (1,) where [S(0)] of (4,) over (2,) gives (2,)"
    state = lab.case(live(lab, good(lab), state={"a": {"exp_avg": bad}}))
    assert set(subjects("PLACE-04", state)) == {"a[exp_avg]"}


def test_a_silent_single_device_run(lab: Lab) -> None:
    def case(seen: str, **declared: Any) -> Case:
        return lab.case(lab.run("refusal", facts={"refusal": [seen]}, ranks=1), **declared)

    assert subjects("PLACE-05", case("")) == ["start()"]
    assert subjects("PLACE-05", case("RuntimeError: no group")) == []


def test_devices(lab: Lab) -> None:
    records = lab.sharded([1.0, 2.0, 3.0])
    astray = [records[0], replace(records[1], device="meta")]
    found = violations("PLACE-06", lab.case(live(lab, {"a": astray})))
    assert {v.ranks for v in found} == {(1,)}
    assert "a mesh of meta" in {v.expected for v in found}
    run = live(lab, {"a": lab.sharded([1.0])}, buffers={"b": lab.plain(1.0, device="cuda:1")})
    assert set(subjects("PLACE-06", lab.case(run))) == {"b"}


def test_names(lab: Lab) -> None:
    a, b = good(lab).values()
    assert subjects("PARAM-01", mirrored(lab, {"a": a})) == ["b", "b"]
    assert subjects("PARAM-01", mirrored(lab, {"a": a, "b": b, "c": b})) == ["c", "c"]
    (first, _) = violations("PARAM-01", mirrored(lab, {"b": b, "a": a}))
    assert (first.subject, first.expected) == ("b", "a at position 0")


def test_shapes_dtypes_values_and_grad(lab: Lab) -> None:
    table = good(lab)
    wide = mirrored(lab, {**table, "a": lab.sharded([1.0, 2.0, 3.0, 4.0])})
    assert subjects("PARAM-02", wide) == ["a", "a"]
    assert subjects("PARAM-03", wide) == ["a"]
    other = mirrored(lab, {**table, "a": lab.sharded([1.0, 2.0, -3.0])})
    assert subjects("PARAM-02", other) == []
    assert subjects("PARAM-03", other) == ["a"]
    frozen = mirrored(lab, {**table, "a": lab.sharded([1.0, 2.0, 3.0], requires_grad=False)})
    assert subjects("PARAM-05", frozen) == ["a", "a"]


def test_a_placeholder_requires_no_gradient(lab: Lab) -> None:
    case = mirrored(lab, good(lab))
    held = lab.case(*case.runs.values(), placeholders=("b",))
    assert subjects("PARAM-05", held) == ["b", "b"]


def test_buffers_on_every_rank(lab: Lab) -> None:
    one = serial(lab, {"a": lab.plain(1.0)[0]}, table=lab.plain([5.0])[0])
    weights = {"a": lab.replicated(1.0)}
    for buffers, broken in (
        ({"table": lab.plain([5.0])}, set()),
        ({"table": lab.plain([5.0], [6.0])}, {"table"}),
        ({"table": lab.plain([7.0])}, {"table"}),
        ({}, {"table"}),
        ({"table": lab.plain([5.0]), "new": lab.plain([5.0])}, {"new"}),
    ):
        assert (
            set(subjects("PARAM-04", lab.case(one, live(lab, weights, buffers=buffers)))) == broken
        )


@pytest.mark.parametrize(
    ("seen", "broken"),
    [("NotImplementedError: later", False), ("returned", True), ("TypeError: x", True), ("", True)],
)
def test_placeholders(lab: Lab, seen: str, broken: bool) -> None:
    run = live(lab, good(lab), {"placeholders": [{"b": seen}] * 2}, groups=[group("a")])
    assert (subjects("PARAM-06", lab.case(run, placeholders=("b",))) == ["b", "b"]) is broken


@pytest.mark.parametrize(
    ("seen", "broken"),
    [
        ("NotImplementedError: 'net.head' is not ported", False),
        ("NotImplementedError: head", False),
        ("NotImplementedError: ", True),
        ("NotImplementedError: net", True),
    ],
)
def test_a_placeholder_names_itself(lab: Lab, seen: str, broken: bool) -> None:
    run = live(lab, good(lab), {"placeholders": [{"net.head.": seen}] * 2}, groups=[group("a")])
    found = subjects("PARAM-10", lab.case(run, placeholders=("net.head.",)))
    assert (found == ["net.head."] * 2) is broken


def test_a_placeholder_in_an_optimizer(lab: Lab) -> None:
    calls = {"placeholders": [{"b": "NotImplementedError: later"}] * 2}
    run = live(lab, good(lab), calls, groups=[group("a", "b")])
    assert subjects("PARAM-06", lab.case(run, placeholders=("b",))) == ["b"]
    nothing = live(lab, {"a": lab.plain(1.0)}, calls)
    assert subjects("PARAM-06", lab.case(nothing, placeholders=("b",))) == ["placeholders"]


def group(*names: str) -> GroupRecord:
    return GroupRecord(0, 0, names, {})


@pytest.mark.parametrize(
    ("groups", "broken"),
    [
        ([group("a", "b")], set()),
        ([group("a"), group("b")], set()),
        ([group("a")], {"b"}),
        ([group("a", "b"), group("a")], {"a"}),
        ([group("a", "b", "?(7,)")], {"a tensor of shape (7,)"}),
    ],
    ids=str,
)
def test_what_optimizers_hold(lab: Lab, groups: list[GroupRecord], broken: set[str]) -> None:
    assert set(subjects("PARAM-07", lab.case(live(lab, good(lab), groups=groups)))) == broken


def test_a_tied_pair_is_held_once(lab: Lab) -> None:
    tied = {name: lab.sharded([1.0], identity=9, alias=9) for name in ("a", "b")}
    run = live(lab, tied, groups=[group("a")])
    assert subjects("PARAM-07", lab.case(run)) == []
    stray = live(lab, tied, groups=[group("a")], state_names_stray=("(2,)",))
    assert set(subjects("PARAM-07", lab.case(stray))) == {"state of a tensor of shape (2,)"}


def test_ties(lab: Lab) -> None:
    tied = {name: lab.plain(1.0, identity=9)[0] for name in ("a", "b")}
    apart = {"a": lab.replicated(1.0), "b": lab.replicated(1.0)}
    shared = {name: lab.replicated(1.0, identity=9) for name in ("a", "b")}
    untied = {"a": lab.plain(1.0)[0], "b": lab.plain(1.0)[0]}
    for one, other, broken in (
        (tied, shared, set()),
        (untied, apart, set()),
        (tied, apart, {("one tensor", "several")}),
        (untied, shared, {("several tensors", "one")}),
    ):
        found = violations("PARAM-08", lab.case(serial(lab, one), live(lab, other)))
        assert {(v.expected, v.observed) for v in found} == broken


def test_frozen_parameters(lab: Lab) -> None:
    def run(value: float, **more: Any) -> Case:
        moments = {
            moment: lab.snapshots(
                parameters={"f": lab.sharded([at], shard(0), requires_grad=False)}, **more
            )
            for moment, at in (("start", 1.0), ("end", value))
        }
        return lab.case(lab.run("uninterrupted", moments))

    assert subjects("PARAM-09", run(1.0)) == []
    assert subjects("PARAM-09", run(0.9)) == ["f"]
    state = {"f": {"exp_avg": lab.sharded([0.0])}}
    assert subjects("PARAM-09", run(1.0, state=state)) == ["f[exp_avg]"]
    assert subjects("PARAM-09", run(1.0, frozen_gradients=("f",))) == ["f"]
    # What trains at one of the two ends is not asked.
    assert subjects("PARAM-09", run(1.0, frozen_gradients=("g",))) == []
