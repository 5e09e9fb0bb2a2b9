"""Noise from generators of a trainer's own, which nobody else can seed: whether it may be to blame.

Such a generator draws synthetic data as often as noise. Data is the same on every mesh, and so are
the states that it is drawn from; noise is drawn for each rank, and another mesh has other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.evidence.run import RunEvidence

OWN_NOISE = (
    "ranks draw noise from generators of the trainer's own, and other ranks draw other noise"
)


def other_draws(expected: RunEvidence, observed: RunEvidence, stretches: Sequence[str]) -> bool:
    """Whether the two runs draw from other states on the same samples.

    Where the samples are others, or nobody tells which they are, that is what differs first, and
    no noise excuses it.

    Args:
        stretches: what was trained, by the names under which both runs note it.
    """
    for stretch in stretches:
        samples = [_union(run, f"sample_ids {stretch}") for run in (expected, observed)]
        if not samples[0] or samples[0] != samples[1]:
            return False
        draws = [_union(run, f"own draws {stretch}") for run in (expected, observed)]
        if draws[0] != draws[1]:
            return True
    return False


def _union(run: RunEvidence, fact: str) -> set[object]:
    return {value for journal in run.ranks for value in journal.facts.get(fact, ())}
