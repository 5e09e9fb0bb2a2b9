"""GRAD: gradients held against the serial run's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.run import Moment, RunEvidence, TensorColumns
from pytest_cplife.evidence.trace import StepRecord
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.gradients import gradients_equal
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.own_noise import OWN_NOISE, other_draws
from pytest_cplife.rules.param_identity import FLATTENED, holds_flattened
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule


@rule(
    "GRAD-08",
    "gradients equal the serial ones",
    statement="Without dropout, the gradients that the first step is made with (reduced, clipped)"
    " are the serial run's, within the rounding of sums in another order. Where an optimizer holds"
    " flattened parameters, its first moments tell of them.",
    why="A gradient that is off by a factor, a row or a rank's share trains another model, and Adam"
    " hides the factor.",
    cause="A missing or a doubled reduction, a mean over the wrong group, a norm of local parts, or"
    " rows of a shard lost.",
    runs=("serial", "parity"),
)
def gradient_parity(case: Case) -> Iterator[Finding]:
    serial, run = case["serial"], case["parity"]
    gradients = _merged(serial.steps("first")[0])
    if not gradients:
        yield Violation("gradients", "some in the serial run", "none", "serial: first step")
    yield from completes(case, "GRAD-08", "parity")
    after = run.at("after first step")
    if holds_flattened(after):
        wanted = _first_moments(serial.at("after first step"))
        observed = _columns_of_moments(after)
        if not wanted.keys() & observed.keys():
            raise NotCovered(FLATTENED)
        kept_in = _dtypes(after, wanted)
        found = list(gradients_equal(run.assembler, wanted, observed, kept_in))
    else:
        tables = [_merged(steps) for steps in run.steps("first")]
        shared = set.intersection(*map(set, tables))
        observed = {name: [table[name] for table in tables] for name in shared}
        found = list(gradients_equal(run.assembler, gradients, observed))
    if any(isinstance(finding, Violation) for finding in found):
        if other_draws(serial, run, ("first",)):
            raise NotCovered(OWN_NOISE)
        if _noisy(serial, gradients):
            raise NotCovered("noise that is not dropout moves the serial run's own gradients")
    yield from found


_OF_THE_GRADIENT = ("exp_avg", "momentum_buffer")
"""Entries of optimizer state that are a multiple of the gradient after the first step."""


def _columns_of_moments(moment: Moment) -> TensorColumns:
    """Per name of such an entry, ``fqn[entry]``, its record on each rank.

    Of an optimizer over flattened parameters nothing else tells which gradient it has stepped with.
    """
    return {
        name: records
        for name, records in moment.optimizer_tensors.items()
        if name.rpartition("[")[2].removesuffix("]") in _OF_THE_GRADIENT
    }


def _first_moments(moment: Moment) -> dict[str, TensorRecord]:
    return {name: records[0] for name, records in _columns_of_moments(moment).items()}


def _dtypes(moment: Moment, entries: Iterable[str]) -> dict[str, str]:
    """By entry the dtype of its parameter, in which the gradient was; a name that the model does
    not have is another rule's to tell."""
    owners = ((entry, moment.parameters.get(entry.rpartition("[")[0])) for entry in entries)
    return {entry: records[0].dtype for entry, records in owners if records}


def _noisy(serial: RunEvidence, wanted: Mapping[str, TensorRecord]) -> bool:
    """Whether the serial run's first step has other gradients on the same samples with other noise.

    Other ranks then draw other noise, too, and nothing says how far their gradients may be apart.
    """
    if "first with other noise" not in serial.ranks[0].steps:
        return False
    samples = (f"sample_ids {stretch}" for stretch in ("first", "first with other noise"))
    ids = [serial.ranks[0].facts.get(name) for name in samples]
    if ids[0] != ids[1]:
        return False  # It is the order of the samples that was drawn.
    again = _merged(serial.steps("first with other noise")[0])
    seen = {name: [record] for name, record in again.items()}
    return any(
        isinstance(finding, Violation)
        for finding in gradients_equal(serial.assembler, wanted, seen)
    )


def _merged(steps: Sequence[StepRecord]) -> dict[str, TensorRecord]:
    """The gradients of several optimizers' steps."""
    return {name: record for step in steps for name, record in step.gradients.items()}
