"""What a rule must have seen before its pass means anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_cplife.evidence.records import GroupRecord, ValueRecord
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.fuzz.evidence import FUZZ_RUNS
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.events import EVENTS, unseen
from pytest_cplife.rules.model import Rule
from pytest_cplife.rules.registry import all_rules
from pytest_cplife.scenarios.table import RUNS
from tests.rules.builders import Lab, step_of

MOMENTS = (
    "start",
    "after first step",
    "before save",
    "after save",
    "at save point",
    "after load",
    "after next step",
    "end",
    "before evaluation",
)


def rich(lab: Lab, name: str) -> RunEvidence:
    """A run in which there is one of everything, and everything moves."""
    weight = lab.sharded([1.0, 2.0, 3.0])
    moments: dict[str, Sequence[Snapshot]] = {
        moment: lab.snapshots(
            moment,
            parameters={
                "w": lab.sharded([float(position + len(name)), 2.0, 3.0]),
                "frozen": lab.sharded([1.0, 2.0], requires_grad=False),
            },
            buffers={"b": lab.plain(1.0)},
            state={"w": {"exp_avg": weight}},
            ema={"w": weight},
            schedulers=[{"last_epoch": ValueRecord("int", "1")}],
        )
        for position, moment in enumerate(MOMENTS)
    }
    gradients = [[step_of({"w": record})] for record in weight]
    return lab.run(name, moments, steps={"first": gradients})


def of(lab: Lab, rule: Rule, **declared: Any) -> Case:
    return lab.case(*(rich(lab, name) for name in rule.runs), placeholders=("p",), **declared)


WITH_EVENTS = [rule for rule in all_rules() if rule.events]


@pytest.mark.parametrize("rule", WITH_EVENTS, ids=lambda rule: rule.id)
def test_events_can_be_seen_in_the_runs_that_the_rule_asks_for(lab: Lab, rule: Rule) -> None:
    """`unseen` takes a run that is not there for one that went wrong, and so would never fail."""
    case = of(lab, rule)
    for name in rule.events:
        assert EVENTS[name][1](case), name
    assert unseen(case, rule.events) == ""


def test_every_event_is_asked_for() -> None:
    assert {name for rule in WITH_EVENTS for name in rule.events} == set(EVENTS)


def saving(lab: Lab, **snapshot: Any) -> Case:
    return lab.case(lab.run("saving", {"before save": lab.snapshots(**snapshot)}))


def declared(lab: Lab, case: Case, **values: Any) -> Case:
    return lab.case(*case.runs.values(), **values)


def test_trainable_parameters(lab: Lab) -> None:
    frozen = saving(lab, parameters={"w": lab.plain(1.0, requires_grad=False)})
    assert unseen(frozen, ("trainable parameters",)) == "a trainable parameter"
    assert unseen(saving(lab), ("trainable parameters",)) == ""


def test_dtensors(lab: Lab) -> None:
    plain = saving(lab, parameters={"w": lab.plain(1.0)})
    assert unseen(plain, ("dtensors",)) == "a DTensor parameter"
    assert unseen(saving(lab), ("dtensors",)) == ""
    with pytest.raises(NotCovered, match="declared plain"):
        unseen(declared(lab, plain, plain_parameters=("",)), ("dtensors",))


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("buffers", "no buffers"),
        ("placeholders", "no placeholders"),
        ("frozen parameters", "no frozen"),
        ("schedulers", "no schedulers"),
    ],
)
def test_what_a_trainer_does_not_have_is_not_covered(lab: Lab, event: str, why: str) -> None:
    with pytest.raises(NotCovered, match=why):
        unseen(saving(lab), (event,))


def test_several_ranks(lab: Lab) -> None:
    assert unseen(saving(lab), ("several ranks",)) == ""
    with pytest.raises(NotCovered, match="no replicas"):
        unseen(saving(lab.on("dp=1")), ("several ranks",))


@pytest.mark.parametrize(
    ("values", "covered"),
    [
        ({"momentum": ValueRecord("int", "0")}, False),
        ({"momentum": ValueRecord("float", "0.0")}, False),
        ({"momentum": ValueRecord("float", "0.9")}, True),
        ({"betas.0": ValueRecord("float", "0.9")}, True),
    ],
    ids=str,
)
def test_an_optimizer_without_state(
    lab: Lab, values: Mapping[str, ValueRecord], covered: bool
) -> None:
    """Only of plain SGD is it right to keep nothing."""
    case = saving(lab, groups=[GroupRecord(0, 0, ("w",), dict(values))])
    if covered:
        assert unseen(case, ("optimizer state",)) == "optimizer state after the first steps"
    else:
        with pytest.raises(NotCovered, match="SGD"):
            unseen(case, ("optimizer state",))


def test_no_groups_are_no_sgd(lab: Lab) -> None:
    assert unseen(saving(lab, groups=[]), ("optimizer state",))


def test_gradients(lab: Lab) -> None:
    weight = lab.sharded([1.0, 2.0, 3.0])
    none = lab.run("uninterrupted", steps={"first": [[step_of({})]] * 2})
    some = lab.run("uninterrupted", steps={"first": [[step_of({"w": weight[0]})]] * 2})
    assert unseen(lab.case(none), ("gradients",)) == "a gradient at the first step"
    assert unseen(lab.case(some), ("gradients",)) == ""


@pytest.mark.parametrize(
    ("event", "first", "second"),
    [
        ("weights moved", "start", "at save point"),
        ("weights moved on", "at save point", "end"),
    ],
)
@pytest.mark.parametrize(("value", "moved"), [(3.0, False), (4.0, True)])
def test_weights_that_move(
    lab: Lab, event: str, first: str, second: str, value: float, moved: bool
) -> None:
    """One rank's shard is enough."""
    before = lab.snapshots(parameters={"w": lab.sharded([1.0, 2.0, 3.0])})
    after = lab.snapshots(parameters={"w": lab.sharded([1.0, 2.0, value])})
    case = lab.case(lab.run("uninterrupted", {first: before, second: after}))
    assert (unseen(case, (event,)) == "") is moved


@pytest.mark.parametrize("value", [3.0, 4.0])
def test_a_load_that_has_something_to_change(lab: Lab, value: float) -> None:
    saved = lab.run("saving", {"before save": lab.snapshots()})
    start = lab.snapshots(parameters={"w": lab.sharded([1.0, 2.0, value])})
    case = lab.case(saved, lab.run("resumed", {"start": start}))
    assert (unseen(case, ("load changes weights",)) == "") is (value == 4.0)


def test_steps_before_the_save(lab: Lab) -> None:
    assert unseen(saving(lab), ("steps before the save",)) == ""
    assert unseen(saving(lab, step=0), ("steps before the save",)) == "a step before the save"


def test_the_first_that_is_missing_is_told(lab: Lab) -> None:
    case = saving(lab, step=0, parameters={"w": lab.plain(1.0, requires_grad=False)})
    asked = ("several ranks", "steps before the save", "trainable parameters")
    assert unseen(case, asked) == "a step before the save"


def test_a_run_that_did_not_get_there_is_for_the_check_to_say(lab: Lab) -> None:
    case = lab.case(lab.run("uninterrupted"), placeholders=("p",))
    assert unseen(case, tuple(EVENTS)) == ""


def test_every_run_is_known_to_the_table() -> None:
    assert {run for rule in all_rules() for run in rule.runs} <= {*RUNS, *FUZZ_RUNS}
