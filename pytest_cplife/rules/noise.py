"""The trainer's own noise: how far runs of it that never stopped are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.evidence.compare import difference
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment, RunEvidence, TensorColumns, Unanswered
from pytest_cplife.rules.case import Noise

_BEFORE = ("after first step", "at save point")
_AFTER = ("after next step", "end")


def measure_noise(run: RunEvidence, twin: RunEvidence) -> Noise:
    """Compare a run with its twin; empty where they agree bit for bit."""
    noise: dict[tuple[str, str], float] = {}
    for name, a, b in _moments(run, twin, *_BEFORE, *_AFTER):
        left, right = _tensors(a), _tensors(b)
        for subject in left.keys() & right.keys():
            gap = _gap(run, left[subject], right[subject])
            if gap and math.isfinite(gap):
                noise[name, subject] = gap
    for number, (x, y) in enumerate(_losses(run, twin), start=1):
        if x != y and math.isfinite(abs(x - y)):
            noise["losses", str(number)] = abs(x - y)
    return Noise(noise)


def measure_rounding(run: RunEvidence, nudged: RunEvidence) -> Noise:
    """What a last bit in the gradients makes of a run from its save point on.

    At the least a last bit of each result: which elements are rounded up and which down is a
    matter of chance, so that a tensor whose bits all came out alike has not shown that they must.
    """
    noise = dict(measure_noise(run, nudged).by_subject)
    for name, a, _ in _moments(run, nudged, *_AFTER):
        for subject, records in _tensors(a).items():
            noise[name, subject] = max(unit(run, records), noise.get((name, subject), 0.0))
    for number, (x, _) in enumerate(_losses(run, nudged), start=1):
        if math.isfinite(x):
            bit = torch.finfo(torch.float32).eps * abs(x)
            noise["losses", str(number)] = max(bit, noise.get(("losses", str(number)), 0.0))
    return Noise(noise)


def larger(one: Noise, other: Noise) -> Noise:
    """What either of the two allows."""
    both = one.by_subject.keys() | other.by_subject.keys()
    return Noise({place: max(n.by_subject.get(place, 0.0) for n in (one, other)) for place in both})


def _moments(
    run: RunEvidence, other: RunEvidence, *names: str
) -> Iterator[tuple[str, Moment, Moment]]:
    for name in names:
        try:
            yield name, run.at(name), other.at(name)
        except Unanswered:
            return


def _losses(run: RunEvidence, other: RunEvidence) -> list[tuple[float, float]]:
    try:
        first, second = run.losses("next", "rest")[0], other.losses("next", "rest")[0]
    except Unanswered:
        return []
    return list(zip(first, second, strict=False))


def _tensors(moment: Moment) -> TensorColumns:
    return moment.parameters | moment.buffers | moment.optimizer_tensors


def _gap(run: RunEvidence, left: list[TensorRecord], right: list[TensorRecord]) -> float:
    try:
        if run.assembler.digest(left) == run.assembler.digest(right):
            return 0.0
        return difference(run.assembler.full(left), run.assembler.full(right)).max_abs
    except (CannotAssemble, ValueError):
        return 0.0


def unit(run: RunEvidence, records: list[TensorRecord]) -> float:
    """One unit in the last place of the largest element; 0 where there is no such thing."""
    try:
        full = run.assembler.full(records)
    except CannotAssemble:
        return 0.0
    if not full.is_floating_point() or not full.numel():
        return 0.0
    bit = torch.finfo(full.dtype).eps * float(full.abs().max())
    return bit if math.isfinite(bit) else 0.0
