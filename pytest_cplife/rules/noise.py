"""The trainer's own noise: how far two uninterrupted runs are apart."""

from __future__ import annotations

import math

from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.evidence.compare import difference
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import RunEvidence, Unanswered
from pytest_cplife.rules.case import Noise

_MOMENTS = ("after first step", "at save point", "after next step", "end")


def measure_noise(run: RunEvidence, twin: RunEvidence) -> Noise:
    """Compare a run with its twin; empty where they agree bit for bit."""
    noise: dict[tuple[str, str], float] = {}
    for moment in _MOMENTS:
        try:
            a, b = run.at(moment), twin.at(moment)
        except Unanswered:
            break
        left = a.parameters | a.buffers | a.optimizer_tensors
        right = b.parameters | b.buffers | b.optimizer_tensors
        for subject in left.keys() & right.keys():
            gap = _gap(run, left[subject], right[subject])
            if gap and math.isfinite(gap):
                noise[moment, subject] = gap
    try:
        first, second = run.losses("next", "rest")[0], twin.losses("next", "rest")[0]
    except Unanswered:
        return Noise(noise)
    for number, (x, y) in enumerate(zip(first, second, strict=False), start=1):
        if x != y and math.isfinite(abs(x - y)):
            noise["losses", str(number)] = abs(x - y)
    return Noise(noise)


def _gap(run: RunEvidence, left: list[TensorRecord], right: list[TensorRecord]) -> float:
    try:
        if run.assembler.digest(left) == run.assembler.digest(right):
            return 0.0
        return difference(run.assembler.full(left), run.assembler.full(right)).max_abs
    except (CannotAssemble, ValueError):
        return 0.0
