"""A trainer's own noise excuses what a resumed run differs by only where it is fresh by policy."""

from __future__ import annotations

import pytest

from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Case, Declared
from pytest_cplife.rules.own_noise import drawn_afresh
from tests.rules.builders import Lab

SAMPLES = {"first": ((0,), (1,)), "next": ((2,), (3,))}


def run(lab: Lab, name: str, draws: dict[str, str], samples: object = SAMPLES) -> RunEvidence:
    """A run of two ranks that has drawn, per stretch, from the one state that is given."""
    evidence = lab.run(name, {})
    for rank, journal in enumerate(evidence.ranks):
        for stretch, state in draws.items():
            own = samples.get(stretch.partition(" from ")[0]) if isinstance(samples, dict) else None
            if own is not None:
                journal.facts[f"sample_ids {stretch}"] = own[rank]
            journal.facts[f"own draws {stretch}"] = (f"{state}{rank}",) if state else ()
    return evidence


@pytest.mark.parametrize(
    ("policy", "resumed", "samples", "excused"),
    [
        ("offset", {"next": "c"}, SAMPLES, True),
        ("offset", {"next from 1": "c"}, SAMPLES, True),
        ("restore", {"next": "c"}, SAMPLES, False),
        ("none", {"next": "c"}, SAMPLES, False),
        ("offset", {"next": "b"}, SAMPLES, False),
        ("offset", {"next": "a"}, SAMPLES, False),
        ("offset", {"next": ""}, SAMPLES, False),
        ("offset", {"still": "c"}, SAMPLES, False),
        ("offset", {"next": "c"}, {"next": ((3,), (4,))}, False),
        ("offset", {"next": "c"}, None, False),
    ],
    ids=[
        "fresh by policy",
        "fresh after a later stop",
        "it ought to be restored",
        "nothing is said of it",
        "the same draws",
        "the first step's draws again",
        "no draws",
        "not what the other trained",
        "other samples",
        "untold samples",
    ],
)
def test_fresh_noise(
    lab: Lab, policy: str, resumed: dict[str, str], samples: object, excused: bool
) -> None:
    runs = {
        "uninterrupted": run(lab, "uninterrupted", {"first": "a", "next": "b"}),
        "resumed": run(lab, "resumed", resumed, samples),
    }
    assert drawn_afresh(Case(None, Declared(rng_policy=policy), runs)) is excused


def test_a_rule_without_runs_has_no_noise() -> None:
    assert not drawn_afresh(Case(None, Declared(), {}))
