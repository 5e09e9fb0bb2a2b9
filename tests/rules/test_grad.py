"""GRAD on evidence made by hand: steps, gradients, and replicas that part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import RunEvidence, Unanswered
from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.rules.case import Case
from tests.evidence.layouts import partial, replicate
from tests.rules.builders import Lab, step_of, subjects, violations

COUNTS = (("start", 0), ("after first step", 1), ("at save point", 3), ("after next step", 4))


def trained(
    lab: Lab,
    losses: Sequence[Sequence[float]] = ((3.0, 2.0, 1.0, 0.5),) * 2,
    counts: Mapping[str, int] | None = None,
    gradients: Sequence[Mapping[str, TensorRecord]] | None = None,
    calls: int = 1,
    still: Sequence[str] = (),
    without: tuple[str, ...] = (),
    **steps: Any,
) -> RunEvidence:
    moments = {}
    for name, count in (*COUNTS, ("end", 4)):
        moved = {p: lab.sharded([1.0 + (0 if p in still else count), 2.0]) for p in ("a", "b")}
        moments[name] = lab.snapshots(parameters=moved, step={**(counts or {})}.get(name, count))
    seen = gradients or [{"a": record, "b": record} for record in lab.sharded([0.5, 0.25])]
    made: list[list[StepRecord]] = [
        [step_of(g, without_gradient=without, **steps)] * calls for g in seen
    ]
    return lab.run(
        "uninterrupted",
        moments,
        losses={"first": [x[:1] for x in losses], "next": [x[1:] for x in losses]},
        steps={"first": made, "next": made},
    )


@pytest.mark.parametrize("rule", ["GRAD-02", "GRAD-03", "GRAD-05", "GRAD-06", "GRAD-07"])
def test_a_sound_run_passes(lab: Lab, rule: str) -> None:
    assert violations(rule, lab.case(trained(lab))) == []


@pytest.mark.parametrize(
    ("losses", "subject", "ranks"),
    [
        (((3.0, 2.0, 1.0, 0.5), (3.0, 2.0, 1.5, 0.5)), "loss", (1,)),
        (((3.0, math.inf, 1.0, 0.5),) * 2, "loss", (0, 1)),
        (((3.0, 2.0),) * 2, "train()", (0,)),
        (((3.0, 2.0, 1.0, 0.5), (3.0, 2.0, 1.0)), "train()", (1,)),
    ],
)
def test_losses(
    lab: Lab, losses: Sequence[Sequence[float]], subject: str, ranks: tuple[int, ...]
) -> None:
    found = violations("GRAD-02", lab.case(trained(lab, losses)))
    assert found[0].subject == subject
    assert found[0].ranks == ranks


def test_a_loss_that_is_no_number_is_found_once(lab: Lab) -> None:
    found = violations("GRAD-02", lab.case(trained(lab, ((3.0, math.nan, 1.0, 0.5),) * 2)))
    assert {v.step for v in found} == {2}


def test_counters_and_calls(lab: Lab) -> None:
    ahead = trained(lab, counts={"after first step": 2})
    assert set(subjects("GRAD-03", lab.case(ahead))) == {"global_step"}
    twice = trained(lab, calls=2)
    assert set(subjects("GRAD-03", lab.case(twice))) == {"optimizer.step()"}
    never = trained(lab, calls=0)
    assert set(subjects("GRAD-03", lab.case(never))) == {"optimizer.step()"}


def serial(lab: Lab, moves: Sequence[str], absent: str = "") -> RunEvidence:
    lab = lab.on("dp=1")
    moments = {
        name: lab.snapshots(
            parameters={p: lab.plain(float(at if p in moves else 0)) for p in ("a", "b")}
        )
        for name, at in (("start", 1), ("after first step", 2))
    }
    gradients = {"a": lab.plain(1.0)[0], "b": lab.plain(1.0)[0]}
    if absent:
        return lab.run("serial", absent={"start": absent})
    return lab.run("serial", moments, steps={"first": [[step_of(gradients)]]})


@pytest.mark.parametrize(
    ("moves", "still", "broken"),
    [
        (["a", "b"], [], []),
        (["a", "b"], ["b"], ["b"]),
        (["a"], ["b"], []),
        ([], ["a", "b"], []),
    ],
)
def test_weights_move_where_the_serial_ones_do(
    lab: Lab, moves: list[str], still: list[str], broken: list[str]
) -> None:
    case = lab.case(serial(lab, moves), trained(lab, still=still))
    assert subjects("GRAD-04", case) == broken


@pytest.mark.parametrize(
    ("still", "without", "broken"),
    [
        ([], (), []),
        (["b"], (), ["b"]),
        (["b"], ("b",), []),
        (["a", "b"], ("a", "b"), ["all weights"]),
    ],
)
def test_weights_move_without_a_serial_run(
    lab: Lab, still: list[str], without: tuple[str, ...], broken: list[str]
) -> None:
    run = trained(lab, still=still, without=without)
    assert subjects("GRAD-04", lab.case(serial(lab, [], absent="no serial run"), run)) == broken


def test_a_serial_run_that_failed_is_no_excuse(lab: Lab) -> None:
    with pytest.raises(Unanswered):
        violations("GRAD-04", lab.case(lab.run("serial"), trained(lab)))


def two_gradients(lab: Lab, second: TensorRecord) -> Case:
    first = lab.sharded([0.5, 0.25])[0]
    return lab.case(trained(lab, gradients=[{"a": first}, {"a": second}]))


@pytest.mark.parametrize(
    "change",
    [
        {"placements": (partial(),)},
        {"placements": (replicate(),)},
        {"kind": "plain", "type_name": "Tensor"},
        {"local_shape": (2,)},
    ],
    ids=str,
)
def test_gradients_lie_like_their_parameters(lab: Lab, change: Mapping[str, Any]) -> None:
    second = replace(lab.sharded([0.5, 0.25])[1], **change)
    found = violations("GRAD-05", two_gradients(lab, second))
    assert {(v.subject, v.ranks) for v in found} == {("a", (1,))}


def test_replicas_of_gradients(lab: Lab) -> None:
    good = lab.replicated([0.5, 0.25])
    odd = lab.other_bytes(good, 1, [0.5, 0.75])
    case = lab.case(trained(lab, gradients=[{"a": record} for record in odd]))
    assert set(subjects("GRAD-06", case)) == {"a"}
    lost = lab.case(trained(lab, gradients=[{"a": good[0]}, {"b": good[1]}]))
    found = violations("GRAD-06", lost)
    assert {(v.subject, v.ranks) for v in found} == {("a", (1,)), ("b", (0,))}


def test_replicas_of_weights_and_state(lab: Lab) -> None:
    odd = lab.other_bytes(lab.replicated([1.0]), 1, [2.0])
    names = ("after first step", "at save point", "end")
    for snapshot in (
        lab.snapshots(parameters={"w": odd}),
        lab.snapshots(state={"w": {"exp_avg": odd}}),
        lab.snapshots(state={"w": {"step": lab.plain(1.0, 2.0)}}),
    ):
        run = lab.run("uninterrupted", {**dict.fromkeys(names, lab.snapshots()), "end": snapshot})
        assert len(subjects("GRAD-07", lab.case(run))) == 1


def test_a_tensor_of_the_optimizers_own_is_no_replica(lab: Lab) -> None:
    own = lab.plain([1.0, 2.0], [3.0, 4.0])
    flat = [{"w": lab.replicated([0.5])[rank], "?(2,)": own[rank]} for rank in (0, 1)]
    assert subjects("GRAD-06", lab.case(trained(lab, gradients=flat))) == []
    said = lab.other_bytes(lab.replicated([1.0, 2.0]), 1, [3.0, 4.0])
    case = lab.case(trained(lab, gradients=[{"?(2,)": record} for record in said]))
    name = "optimizer tensor of shape (2,), no parameter of the model"
    assert set(subjects("GRAD-06", case)) == {name}
