"""EMA on evidence made by hand: the oracle, inferred decays, and averages that are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pytest_cplife.adapter import EmaSpec
from pytest_cplife.rules.case import Case, NotCovered
from tests.evidence.layouts import shard
from tests.rules.builders import Lab, subjects, violations

STEPS = 4
WEIGHTS = {
    "a": [torch.tensor([1.0, -2.0, 3.0]) * (1 + 0.1 * step) for step in range(STEPS + 1)],
    "b": [torch.tensor([[0.5 - 0.2 * step]]) for step in range(STEPS + 1)],
}
Rule = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""From step, old average and live weight to the new average."""


def decayed(decay: float) -> Rule:
    return lambda step, old, live: decay * old + (1 - decay) * live


def averages(rule: Rule) -> dict[str, list[torch.Tensor]]:
    shadows = {}
    for name, weights in WEIGHTS.items():
        shadow = [weights[0]]
        for step in range(1, STEPS + 1):
            shadow.append(rule(step, shadow[-1], weights[step]))
        shadows[name] = shadow
    return shadows


def averaged(lab: Lab, shadows: dict[str, list[torch.Tensor]], spec: EmaSpec | None = None) -> Case:
    moments = {}
    names = ["start", "after first step", *(f"after step {n}" for n in range(2, STEPS + 1))]
    for step, name in enumerate([*names, "at save point"]):
        step = min(step, STEPS)
        moments[name] = lab.snapshots(
            name,
            parameters={p: lab.sharded(w[step], shard(0)) for p, w in WEIGHTS.items()},
            ema={p: lab.sharded(w[step], shard(0)) for p, w in shadows.items()},
            step=step,
        )
    return lab.case(lab.run("uninterrupted", moments), ema_spec=spec)


def slow(number: int) -> float:
    return min(0.9, (1 + number) / (10 + number))


SPECS: list[tuple[EmaSpec, Rule]] = [
    (EmaSpec(0.9), decayed(0.9)),
    (EmaSpec(slow), lambda step, old, live: slow(step) * old + (1 - slow(step)) * live),
    (
        EmaSpec(0.9, init="first_update"),
        lambda step, old, live: live if step == 1 else 0.9 * old + 0.1 * live,
    ),
    (
        EmaSpec(0.9, every=2, start_step=2),
        lambda step, old, live: 0.9 * old + 0.1 * live if step in (2, 4) else old,
    ),
]


@pytest.mark.parametrize(("spec", "rule"), SPECS, ids=["decay", "warm-up", "first", "every"])
def test_an_average_that_follows_its_rule(lab: Lab, spec: EmaSpec, rule: Rule) -> None:
    shadows = averages(rule)
    assert violations("EMA-01", averaged(lab, shadows, spec)) == []
    for other in (EmaSpec(0.99), EmaSpec(0.9, start_step=3)):
        assert set(subjects("EMA-01", averaged(lab, shadows, other))) == {"a", "b"}


def test_an_average_without_a_declared_rule(lab: Lab) -> None:
    shadows = averages(decayed(0.9))
    case = averaged(lab, shadows)
    assert violations("EMA-01", case) == []
    assert violations("EMA-02", case) == []
    assert violations("EMA-02", averaged(lab, shadows, EmaSpec(0.9))) == []


@pytest.mark.parametrize(
    "rule",
    [
        lambda step, old, live: decayed(0.9)(step, decayed(0.9)(step, old, live), live),
        lambda step, old, live: old,
    ],
    ids=["updated twice", "never updated"],
)
def test_one_tensor_with_another_decay(lab: Lab, rule: Rule) -> None:
    """A tied pair that is updated under each of its names."""
    shadows = averages(decayed(0.9)) | {"b": averages(rule)["b"]}
    assert set(subjects("EMA-02", averaged(lab, shadows))) & {"a", "b"}
    assert set(subjects("EMA-01", averaged(lab, shadows, EmaSpec(0.9)))) == {"b"}


def test_one_element_that_went_astray(lab: Lab) -> None:
    shadows = averages(decayed(0.9))
    shadows["a"][3] = shadows["a"][3] + torch.tensor([0.0, 0.0, 0.01])
    (violation,) = violations("EMA-01", averaged(lab, shadows, EmaSpec(0.9)))
    assert (violation.subject, violation.step) == ("a", 3)
    assert violation.difference == pytest.approx(0.01, rel=1e-3)
    assert subjects("EMA-01", averaged(lab, shadows))


def test_no_averages_are_not_covered(lab: Lab) -> None:
    case = lab.case(lab.run("uninterrupted", {"start": lab.snapshots()}))
    for rule in ("EMA-01", "EMA-02"):
        with pytest.raises(NotCovered, match="no averaged weights"):
            violations(rule, case)


def test_averages_of_nothing(lab: Lab) -> None:
    other = {"x": averages(decayed(0.9))["a"]}
    assert "averages" in subjects("EMA-01", averaged(lab, other, EmaSpec(0.9)))


def kept(lab: Lab, saved: Sequence[float], loaded: Sequence[float] | None, **more: Any) -> Case:
    def seen(value: Sequence[float] | None) -> Any:
        ema = {} if value is None else {"w": lab.sharded(list(value))}
        return lab.snapshots(ema=ema, **more)

    return lab.case(
        lab.run("saving", {"before save": seen(saved)}),
        lab.run("resumed", {"after load": seen(loaded)}),
    )


def test_averages_come_back(lab: Lab) -> None:
    average, live = (1.0, 2.0, 2.5), (1.0, 2.0, 3.0)
    assert subjects("EMA-03", kept(lab, average, average)) == []
    assert subjects("EMA-03", kept(lab, average, live)) == ["w"]
    assert subjects("EMA-03", kept(lab, average, None)) == ["w"]
    # An average that is the live weight proves nothing.
    assert subjects("EMA-03", kept(lab, live, live)) == ["all averages"]


def test_averages_agree_over_replicas(lab: Lab) -> None:
    good = lab.replicated([1.0, 2.0])
    odd = lab.other_bytes(good, 1, [1.0, 3.0])
    for loaded, broken in ((good, []), (odd, ["w"])):
        case = lab.case(
            lab.run("saving", {"before save": lab.snapshots(ema={"w": good})}),
            lab.run("resumed", {"after load": lab.snapshots(ema={"w": loaded})}),
        )
        assert subjects("EMA-06", case) == broken


def test_equal_to_the_uninterrupted_average(lab: Lab) -> None:
    def run(name: str, value: float) -> Any:
        seen = lab.snapshots(ema={"w": lab.sharded([1.0, value])})
        return lab.run(name, {"after next step": seen, "end": seen})

    assert subjects("EMA-04", lab.case(run("uninterrupted", 2.0), run("resumed", 2.0))) == []
    other = lab.case(run("uninterrupted", 2.0), run("resumed", 2.5))
    assert subjects("EMA-04", other) == ["w", "w"]


def at_save_point(lab: Lab, **seen: Any) -> Case:
    return lab.case(lab.run("uninterrupted", {"at save point": lab.snapshots(**seen)}))


def test_storage_of_its_own(lab: Lab) -> None:
    weights = {"w": lab.sharded([1.0, 2.0], identity=1, alias=11)}
    for aliases, identities, broken in (
        ((12, 13), (2, 3), set()),
        ((11, 13), (2, 3), {"w"}),
        # Views of one flat buffer are copies; one object of two names is none.
        ((12, 12), (2, 3), set()),
        ((12, 12), (2, 2), {"v"}),
    ):
        ema = {
            name: lab.sharded([1.0, 2.0], alias=alias, identity=identity)
            for name, alias, identity in zip(("w", "v"), aliases, identities, strict=True)
        }
        case = at_save_point(lab, parameters=weights, ema=ema)
        assert set(subjects("EMA-05", case)) == broken


def test_empty_shards_share_nothing(lab: Lab) -> None:
    records = lab.sharded([1.0], identity=1, alias=5)
    case = at_save_point(lab, parameters={"w": records}, ema={"w": records})
    assert {v.ranks for v in violations("EMA-05", case)} == {(0,)}


def test_what_averages_cover(lab: Lab) -> None:
    tied = {name: lab.sharded([1.0], identity=9, alias=9) for name in ("a", "b")}
    frozen = {"f": lab.sharded([1.0], identity=8, requires_grad=False)}
    buffers = {"t": lab.plain([5.0])}
    one = lab.sharded([1.0])
    for ema, broken in (
        ({"a": one}, set()),
        ({"b": one, "t": lab.plain([5.0])}, set()),
        ({"a": one, "module.x": one}, {"module.x"}),
        ({"f": one}, {"a", "b"}),
    ):
        case = at_save_point(lab, parameters=tied | frozen, buffers=buffers, ema=ema)
        assert set(subjects("EMA-07", case)) == broken


FREQUENCY = [torch.tensor([0.1, 0.9]) * (1 + step) for step in range(STEPS + 1)]
SEEN = [torch.tensor(10 * step) for step in range(STEPS + 1)]


def buffered(
    lab: Lab,
    frequency: Sequence[torch.Tensor],
    seen: Sequence[torch.Tensor] | None,
    spec: EmaSpec | None,
) -> Case:
    """Averages of one weight and of two buffers, whose averaged values are given by step."""
    weights = averages(decayed(0.9))["a"]
    moments = {}
    names = ["start", "after first step", *(f"after step {n}" for n in range(2, STEPS + 1))]
    for step, name in enumerate(names):
        ema = {"a": lab.plain(weights[step]), "frequency": lab.plain(frequency[step])}
        if seen is not None:
            ema["seen"] = lab.plain(seen[step])
        moments[name] = lab.snapshots(
            name,
            parameters={"a": lab.plain(WEIGHTS["a"][step])},
            buffers={"frequency": lab.plain(FREQUENCY[step]), "seen": lab.plain(SEEN[step])},
            ema=ema,
            step=step,
        )
    return lab.case(lab.run("uninterrupted", moments), ema_spec=spec)


def mean(values: Sequence[torch.Tensor], decay: float = 0.9) -> list[torch.Tensor]:
    shadow = [values[0]]
    for value in values[1:]:
        shadow.append(decay * shadow[-1] + (1 - decay) * value)
    return shadow


BUFFERS = EmaSpec(0.9, float_buffers="average", integer_buffers="copy")


@pytest.mark.parametrize("spec", [BUFFERS, None])
def test_buffers_that_follow_their_rule(lab: Lab, spec: EmaSpec | None) -> None:
    assert violations("EMA-13", buffered(lab, mean(FREQUENCY), SEEN, spec)) == []


@pytest.mark.parametrize("spec", [BUFFERS, None])
@pytest.mark.parametrize(
    ("frequency", "seen", "wrong"),
    [
        (mean(FREQUENCY, 0.5), SEEN, "frequency"),
        (mean(FREQUENCY), [SEEN[0], *[SEEN[1]] * STEPS], "seen"),
    ],
    ids=["another decay", "copied once"],
)
def test_buffers_that_do_not(
    lab: Lab,
    spec: EmaSpec | None,
    frequency: list[torch.Tensor],
    seen: list[torch.Tensor],
    wrong: str,
) -> None:
    assert subjects("EMA-13", buffered(lab, frequency, seen, spec)) == [wrong]


def test_a_declared_rule_is_the_only_one(lab: Lab) -> None:
    """Copies and frozen buffers are sound rules, and not the one that was declared."""
    frozen = [FREQUENCY[0]] * (STEPS + 1)
    for frequency in (FREQUENCY, frozen):
        assert subjects("EMA-13", buffered(lab, frequency, SEEN, BUFFERS)) == ["frequency"]
        assert subjects("EMA-13", buffered(lab, frequency, SEEN, None)) == []


def test_a_buffer_that_is_declared_and_not_there(lab: Lab) -> None:
    assert subjects("EMA-13", buffered(lab, mean(FREQUENCY), None, BUFFERS)) == ["seen"]
    ignored = EmaSpec(0.9, float_buffers="average", integer_buffers="ignore")
    assert subjects("EMA-13", buffered(lab, mean(FREQUENCY), None, ignored)) == []
