"""The trainer's own noise: measured between two uninterrupted runs, by moment and subject."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Noise
from pytest_cplife.rules.noise import larger, measure_noise, measure_rounding
from tests.rules.builders import Lab

MOMENTS = ("after first step", "at save point", "after next step", "end")


def uninterrupted(lab: Lab, weight: Any, losses: list[float], **more: Any) -> RunEvidence:
    seen = lab.snapshots(parameters={"w": lab.sharded(weight)}, **more)
    return lab.run(
        "uninterrupted",
        dict.fromkeys(MOMENTS, seen),
        losses={"next": [losses[:1]] * 2, "rest": [losses[1:]] * 2},
    )


def test_twins_that_agree_have_no_noise(lab: Lab) -> None:
    one = uninterrupted(lab, [1.0, 2.0], [0.5, 0.25])
    assert measure_noise(one, uninterrupted(lab, [1.0, 2.0], [0.5, 0.25])) == Noise({})
    assert measure_noise(one, one).budget("end", "w") == 0.0


def test_every_subject_has_its_own(lab: Lab) -> None:
    def run(weight: list[float], moment: float, buffer: float, loss: float) -> RunEvidence:
        return uninterrupted(
            lab,
            weight,
            [0.5, loss],
            state={"w": {"exp_avg": lab.sharded([moment, 0.0])}},
            buffers={"b": lab.plain(buffer)},
        )

    noise = measure_noise(
        run([1.0, 2.0], 1.0, 3.0, 0.25), run([1.0, 2.5], 1.25, 3.0, 0.375)
    ).by_subject
    assert noise == {
        **{(moment, "w"): 0.5 for moment in MOMENTS},
        **{(moment, "w[exp_avg]"): 0.25 for moment in MOMENTS},
        ("losses", "2"): 0.125,
    }


def test_the_budget_allows_for_a_larger_sample(lab: Lab) -> None:
    noise = Noise({("end", "w"): 0.5})
    assert noise.budget("end", "w") == 2.0
    assert noise.budget("start", "w") == noise.budget("end", "v") == 0.0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_no_budget(lab: Lab, value: float) -> None:
    """A run that overflowed in one twin only would otherwise be allowed anything."""
    one = uninterrupted(lab, [1.0, 2.0], [0.5, 0.25])
    other = uninterrupted(lab, [1.0, value], [value, 0.25])
    assert measure_noise(one, other) == Noise({})


def test_a_twin_that_failed_early_gives_what_it_has(lab: Lab) -> None:
    one = uninterrupted(lab, [1.0, 2.0], [0.5, 0.25])
    seen = lab.snapshots(parameters={"w": lab.sharded([1.0, 3.0])})
    twin = lab.run("twin", {"after first step": seen})
    assert measure_noise(one, twin) == Noise({("after first step", "w"): 1.0})


def test_tensors_that_cannot_be_compared_have_no_noise(lab: Lab) -> None:
    one = uninterrupted(lab, [1.0, 2.0], [0.5, 0.25])
    assert measure_noise(one, uninterrupted(lab, [1.0, 2.0, 3.0], [0.5, 0.25])) == Noise({})
    bad = lab.sharded([1.0, 2.0])
    bad[1] = replace(bad[1], shape=(4,))
    seen = lab.snapshots(parameters={"w": bad})
    assert measure_noise(one, lab.run("twin", dict.fromkeys(MOMENTS, seen))) == Noise({})


EPS = torch.finfo(torch.float32).eps


def test_rounding_counts_from_the_save_point_on(lab: Lab) -> None:
    """A tensor whose bits all came out alike may do otherwise: it is allowed one of them."""
    one = uninterrupted(lab, [1.0, 2.0], [0.5, 0.25], buffers={"count": lab.plain([7])})
    assert measure_rounding(one, one).by_subject == {
        ("after next step", "w"): 2.0 * EPS,
        ("end", "w"): 2.0 * EPS,
        ("after next step", "count"): 0.0,
        ("end", "count"): 0.0,
        ("losses", "1"): 0.5 * EPS,
        ("losses", "2"): 0.25 * EPS,
    }


def test_rounding_that_grows_is_what_was_measured(lab: Lab) -> None:
    one = uninterrupted(lab, [1.0, 2.0], [0.5, 0.25])
    noise = measure_rounding(one, uninterrupted(lab, [1.0, 2.5], [0.5, 0.75])).by_subject
    assert (noise["end", "w"], noise["losses", "2"]) == (0.5, 0.5)
    lost = lab.run("nudged", {}, losses={"next": [[0.5]] * 2, "rest": [[0.25]] * 2})
    assert ("end", "w") not in measure_rounding(one, lost).by_subject


def test_the_larger_noise_counts() -> None:
    one, other = Noise({("end", "w"): 1.0, ("end", "v"): 2.0}), Noise({("end", "w"): 3.0})
    assert larger(one, other).by_subject == {("end", "w"): 3.0, ("end", "v"): 2.0}
    assert larger(one, Noise({})) == one
