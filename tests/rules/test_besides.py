"""Transfers, conversions, plans and extra state, on evidence made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_cplife.evidence.records import ValueRecord
from pytest_cplife.rules.case import Case
from tests.evidence.layouts import replicate, shard
from tests.rules.builders import Lab, subjects


def number(value: int) -> ValueRecord:
    return ValueRecord("int", str(value))


@pytest.mark.parametrize(
    ("loaded", "broken"),
    [
        ({"patience": number(3)}, []),
        ({"patience": number(0)}, ["patience"]),
        ({}, ["patience"]),
        ({"patience": number(3), "more": number(1)}, ["more"]),
    ],
)
def test_extra_state(lab: Lab, loaded: dict[str, Any], broken: list[str]) -> None:
    saved = lab.snapshots(extra={"patience": number(3)})
    case = lab.case(
        lab.run("saving", {"before save": saved}),
        lab.run("resumed", {"after load": lab.snapshots(extra=loaded)}),
    )
    assert subjects("LOAD-16", case) == broken


def test_no_extra_state_says_nothing(lab: Lab) -> None:
    empty = lab.snapshots(extra={})
    case = lab.case(
        lab.run("saving", {"before save": empty}), lab.run("resumed", {"after load": empty})
    )
    assert subjects("LOAD-16", case) == ["named_extra_state()"]


EDITS = ("its own weights", "a module less", "a module more")


def transfer(lab: Lab, after: dict[str, Any], outcome: str = "", step: int = 0) -> Case:
    """The file has a and b; the run begins with other values."""
    saved = {"a": lab.sharded([1.0, 2.0]), "b.w": lab.sharded([3.0, 4.0])}
    fresh = {"a": lab.sharded([7.0, 7.0]), "b.w": lab.sharded([8.0, 8.0])}
    moments = {}
    for edit in EDITS:
        gone = {"b.w": fresh["b.w"]} if edit == "a module less" else {}
        seen = {**saved, **gone, **after.get(edit, {})}
        moments[f"{edit}: before"] = lab.snapshots(parameters=fresh)
        moments[f"{edit}: after"] = lab.snapshots(parameters=seen, step=step)
    facts: dict[str, Any] = {edit: [outcome] * 2 for edit in EDITS}
    run = lab.run("transferred", moments, facts={**facts, "left out": [["b.w"]] * 2})
    return lab.case(lab.run("saving", {"before save": lab.snapshots(parameters=saved)}), run)


def test_a_transfer(lab: Lab) -> None:
    first = lab.snapshots()[0].counters["global_step"]
    assert subjects("LOAD-17", transfer(lab, {}, step=first)) == []
    other = {"a module less": {"b.w": lab.sharded([0.0, 0.0])}}
    assert subjects("LOAD-17", transfer(lab, other, step=first)) == ["b.w"]
    skipped = {"its own weights": {"a": lab.sharded([7.0, 7.0])}}
    assert subjects("LOAD-17", transfer(lab, skipped, step=first)) == ["a"]
    assert subjects("LOAD-17", transfer(lab, {}, step=first + 3)) == ["global_step"] * 3
    assert subjects("LOAD-17", transfer(lab, {}, "refused", first)) == list(EDITS)


@pytest.mark.parametrize(
    ("width", "names", "prefix", "broken"),
    [
        ("no", "no", "no", []),
        ("", "no", "no", ["a weight of another width"]),
        ("no", "", "no", ["foreign names"]),
        ("no", "no", "", ["a", "b.w"]),
    ],
)
def test_another_architecture(
    lab: Lab, width: str, names: str, prefix: str, broken: list[str]
) -> None:
    case = transfer(lab, {})
    run = case["transferred"]
    fresh = run.at("its own weights: before").ranks
    for rank, journal in enumerate(run.ranks):
        journal.facts |= {
            "a weight of another width": width,
            "foreign names": names,
            "another prefix": prefix,
        }
        # Nothing of the file was found under its prefix.
        journal.snapshots["another prefix: before"] = fresh[rank]
        journal.snapshots["another prefix: after"] = fresh[rank]
    assert subjects("LOAD-18", case) == broken


@pytest.mark.parametrize(
    ("plan", "broken"),
    [
        ({"": {"dp": "S(0)"}, "b": {"dp": "R"}, "c": {}}, []),
        ({"": {"dp": "S(0)"}, "b": {"dp": "S(0)"}, "c": {}}, ["b.w"]),
        ({"a": {"dp": "S(0)"}, "b": {"dp": "R"}}, ["c"]),
        ({"": {"dp": "S(0)"}, "b": {"dp": "R"}, "c": {}, "d": {}}, ["d"]),
        ({"": {"dp": "S(0)", "tp": "R"}, "b.w": {"dp": "R"}, "c": {}}, ["a"]),
    ],
    ids=["as planned", "replicated", "no plan", "no such name", "another mesh"],
)
def test_the_plan(lab: Lab, plan: Any, broken: list[str]) -> None:
    parameters = {
        "a": lab.sharded([1.0, 2.0], shard(0)),
        "b.w": lab.sharded([1.0, 2.0], replicate()),
        "c": lab.plain([1.0]),
    }
    run = lab.run(
        "uninterrupted",
        {"start": lab.snapshots(parameters=parameters)},
        facts={"placement plan": [plan] * 2},
    )
    assert subjects("PLACE-07", lab.case(run)) == broken


def test_conversions(lab: Lab) -> None:
    seen = lab.snapshots(parameters={"a": lab.sharded([1.0, 2.0])})
    moved = lab.snapshots(parameters={"a": lab.sharded([4.0, 5.0])})
    phases = ("start", "train", "to_plain", "realign", "close")

    def case(**changes: Any) -> Case:
        moments = {"before": seen, "after": seen, "after realign": seen}
        facts: dict[str, Any] = {"given": [[], []], "given to realign": [[], []]}
        for name, value in changes.items():
            table = facts if name.startswith("given") else moments
            table[name.replace("_", " ")] = value
        return lab.case(lab.run("converted", moments, facts=facts, phases=phases))

    assert subjects("SAVE-16", case()) == []
    assert subjects("SAVE-16", case(after=moved)) == ["a"]
    assert subjects("SAVE-16", case(after_realign=moved)) == ["a"]
    assert subjects("SAVE-16", case(given=[["model['a']"], []])) == ["model['a']"]
    assert subjects("SAVE-16", case(given_to_realign=[[], ["x"]])) == ["x"]
    bare = case()["converted"]
    bare = replace(bare, ranks=tuple(replace(j, facts={"given": []}) for j in bare.ranks))
    for journal in bare.ranks:
        journal.absent["given to realign"] = "capability realign is not offered"
    assert subjects("SAVE-16", lab.case(bare)) == []
