"""Steps on another topology: the budget is what a small change of all weights comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.data import Batch
from pytest_cplife.selftest.trainers.model import TinyNet

from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import NotCovered
from pytest_cplife.rules.model import Measurement, Outcome, Violation
from pytest_cplife.rules.onward import same_predictions, same_steps
from pytest_cplife.rules.registry import get_rule
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings
from tests.rules.builders import Lab, measured

WEIGHTS = {"a": torch.tensor([1.0, -2.0, 3.0]), "b": torch.tensor([0.5, 0.25]), "c": torch.ones(1)}
MOVES = {"a": torch.tensor([0.1, 0.2, -0.1]), "b": torch.tensor([0.3, 0.1]), "c": torch.ones(1)}
SHAKE = 1e-6
"""How much the shaken weights differ at the start."""
SENSITIVITY = 1e-4
"""How much their steps differ, as a share of a step."""


def state(lab: Lab, tables: dict[str, torch.Tensor]) -> list[Snapshot]:
    parameters = {
        name: lab.sharded(value, requires_grad=True) if name == "a" else lab.replicated(value)
        for name, value in tables.items()
    }
    return lab.snapshots(parameters=parameters)


def after(steps: int, *, scale: float = 1.0, shaken: bool = False) -> dict[str, torch.Tensor]:
    start = {n: w * (1 + SHAKE) if shaken else w for n, w in WEIGHTS.items()}
    scale = scale * (1 + SENSITIVITY) if shaken else scale
    return {name: start[name] + steps * scale * MOVES[name] for name in WEIGHTS}


def saving_side(lab: Lab, sensitivity: float = SENSITIVITY) -> RunEvidence:
    moments = {}
    for name, shaken in (("onward", False), ("shaken", True)):
        moments[name] = state(lab, after(0, shaken=shaken))
        for step in (1, 2):
            table = after(step, shaken=shaken)
            if shaken:
                table = {
                    n: v + step * (sensitivity - SENSITIVITY) * MOVES[n] for n, v in table.items()
                }
            moments[f"{name} {step}"] = state(lab, table)
    return lab.run("onward", moments)


def elsewhere(lab: Lab, *changes: tuple[str, float]) -> RunEvidence:
    """The same steps, with the movements of some weights multiplied."""
    moments = {"onward": state(lab, after(0))}
    for step in (1, 2):
        table = after(step)
        for name, factor in changes:
            table[name] = WEIGHTS[name] + step * factor * MOVES[name]
        moments[f"onward {step}"] = state(lab, table)
    return lab.run("crossed", moments)


def judge(lab: Lab, run: RunEvidence, sensitivity: float = SENSITIVITY) -> list[Violation]:
    found = same_steps(saving_side(lab, sensitivity), run, origin="dp1")
    return [finding for finding in found if isinstance(finding, Violation)]


def test_the_same_steps_are_within_their_budget(lab: Lab) -> None:
    findings = list(same_steps(saving_side(lab), elsewhere(lab.on("dp=2,tp=2")), origin="dp1"))
    assert all(isinstance(finding, Measurement) for finding in findings)
    shares = [m.difference for m in measured(findings) if "share of the budget" in m.what]
    assert shares == [0.0, 0.0]
    assert "crossed from dp1: step 1 after the load" in measured(findings)[0].what


def test_a_little_more_than_measured_is_allowed_and_much_more_is_not(lab: Lab) -> None:
    assert judge(lab, elsewhere(lab, ("a", 1 + 3 * SENSITIVITY))) == []
    (violation,) = judge(lab, elsewhere(lab, ("a", 1 + 5 * SENSITIVITY)))
    assert (violation.subject, violation.step) == ("a", 1)
    assert violation.difference is not None and violation.budget is not None
    assert violation.difference > violation.budget > 0


def test_only_the_first_step_that_differs_is_told(lab: Lab) -> None:
    told = judge(lab, elsewhere(lab, ("a", 2.0), ("b", 0.5)))
    assert {v.subject for v in told} == {"a", "b"}
    assert {v.step for v in told} == {1}


def test_a_scaled_step_is_found_in_a_tensor_of_one_element(lab: Lab) -> None:
    assert [v.subject for v in judge(lab, elsewhere(lab, ("c", 2.0)))] == ["c"]


def test_a_trainer_that_follows_its_rounding_is_not_judged(lab: Lab) -> None:
    with pytest.raises(NotCovered, match="rounding, or noise"):
        judge(lab, elsewhere(lab, ("a", 2.0)), sensitivity=0.5)


def test_what_is_no_number_is_no_step(lab: Lab) -> None:
    assert [v.subject for v in judge(lab, elsewhere(lab, ("b", float("nan"))))] == ["b"]


@pytest.mark.parametrize(("value", "wrong"), [(1.0, 0), (1.003, 0), (1.005, 1)])
def test_a_prediction(lab: Lab, value: float, wrong: int) -> None:
    """The shaken weights change it by 0.001, of which four times are allowed."""
    (one,), (shaken,), (seen,) = ([lab.plain([x])[0]] for x in (1.0, 1.001, value))
    origin = lab.run(
        "onward", facts={"onward prediction": [one] * 2, "shaken prediction": [shaken] * 2}
    )
    run = lab.run("crossed", facts={"prediction": [seen] * 2})
    found = list(same_predictions(origin, run, origin="dp1"))
    assert sum(isinstance(finding, Violation) for finding in found) == wrong


class _NoisyRun(fsdp2.Fsdp2Run):
    def loss(self, batch: Batch) -> torch.Tensor:
        # Of this rank's own samples, from the global stream: other ranks draw other numbers.
        return super().loss(batch) * (1 + torch.rand(()))


class Noisy(fsdp2.Adapter):
    """Draws noise that is not dropout; another mesh has other ranks, and so another step."""

    meshes = ("fsdp=1", "fsdp=2")
    run_class = _NoisyRun

    def optimizers(self, model: TinyNet) -> list[torch.optim.Optimizer]:
        # Adam would hide a factor.
        return [torch.optim.SGD(model.parameters(), lr=0.1)]


def test_a_trainer_with_noise_of_its_own_is_not_judged(tmp_path: Path) -> None:
    with Session(Settings("tests.rules.test_onward:Noisy", tmp_path)) as session:
        verdict = session.judge(get_rule("GO-13"), MeshSpec.parse("fsdp=2"))
    assert verdict.outcome is Outcome.NOT_COVERED, verdict.violations
    assert "noise that is not dropout" in verdict.reason


@pytest.mark.parametrize(("turn", "broken"), [(0.0, []), (0.1, ["z"])])
def test_both_parts_of_complex_weights_count(lab: Lab, turn: float, broken: list[str]) -> None:
    """A step that differs in the imaginary part alone is another step."""
    start, move = torch.tensor([1 + 2j, -1j]), torch.tensor([0.1 + 0.2j, 0.3j])

    def at(steps: int, scale: float = 1.0, extra: float = 0.0) -> list[Snapshot]:
        value = start + steps * (scale * move + 1j * extra)
        return lab.snapshots(parameters={"z": lab.replicated(value, requires_grad=True)})

    moments = {"onward": at(0), "shaken": at(0)}
    for step in (1, 2):
        moments |= {f"onward {step}": at(step), f"shaken {step}": at(step, 1 + SENSITIVITY)}
    seen = {"onward": at(0), "onward 1": at(1, extra=turn), "onward 2": at(2, extra=turn)}
    found = same_steps(lab.run("onward", moments), lab.run("crossed", seen), origin="dp1")
    assert [f.subject for f in found if isinstance(f, Violation)] == broken


@pytest.mark.parametrize(
    ("samples", "draws", "excused"),
    [
        ([(0,), (1,)], [("x",), ("y",)], True),
        ([(0,), (1,)], [("x",), ("x",)], False),
        ([(1,), (0,)], [("x",), ("y",)], True),
        ([(0,), (2,)], [("x",), ("y",)], False),
        ([(), ()], [("x",), ("y",)], False),
    ],
    ids=["own noise", "the same data", "other ranks", "other samples", "untold samples"],
)
def test_noise_of_its_own_excuses_other_steps(
    lab: Lab, samples: list[tuple[int, ...]], draws: list[tuple[str, ...]], excused: bool
) -> None:
    """Not where the samples are others, or nobody tells which they are."""
    origin, run = saving_side(lab), elsewhere(lab, ("a", 0.5))
    for evidence, ids, states in (
        (origin, [(0,), (1,)] if any(samples) else samples, [("x",), ("x",)]),
        (run, samples, draws),
    ):
        for journal, own, drawn in zip(evidence.ranks, ids, states, strict=True):
            for step in (1, 2):
                journal.facts[f"sample_ids onward {step}"] = own
                journal.facts[f"own draws onward {step}"] = drawn
    found = same_steps(origin, run, origin="dp1")
    if excused:
        with pytest.raises(NotCovered, match="noise from generators of the trainer's own"):
            list(found)
    else:
        assert any(isinstance(finding, Violation) for finding in found)
