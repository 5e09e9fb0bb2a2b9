"""What a check is given: the evidence of the runs that its rule names, and what was declared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pytest_cplife.adapter import EmaSpec
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.mesh import MeshSpec


@dataclass(frozen=True, slots=True)
class Declared:
    """What the adapter's class says of its trainer, as far as rules ask.

    `loads_serially` is whether it says itself how the serial model loads a file.
    """

    placeholders: tuple[str, ...] = ()
    plain_parameters: tuple[str, ...] = ()
    rng_policy: str = "offset"
    save_points: str = "any"
    payload_objects: bool | tuple[str, ...] = ()
    initialises_process_group: bool = False
    bitwise_resume: bool = True
    ema_spec: EmaSpec | None = None
    loads_serially: bool = False
    capabilities: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    lookalikes: tuple[str, ...] = ()

    def is_plain(self, fqn: str) -> bool:
        return under(fqn, self.plain_parameters)

    def is_placeholder(self, fqn: str) -> bool:
        return under(fqn, self.placeholders)


def under(fqn: str, prefixes: Collection[str]) -> bool:
    """True where `fqn` is one of `prefixes` or lies below one; ``""`` covers all."""
    return any(
        not prefix or fqn == prefix or fqn.startswith(prefix.rstrip(".") + ".")
        for prefix in prefixes
    )


class NotCovered(Exception):
    """The rule asks for something that this trainer does not have; the message says what."""


SAFETY = 4.0
"""What one sample of a trainer's noise is multiplied by: the next one may be larger."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far runs of the trainer that never stopped are apart, by moment and subject.

    Another run is one sample of the noise, allowed for with `SAFETY`.
    """

    by_subject: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def budget(self, moment: str, subject: str) -> float:
        """The allowed absolute difference: 0 unless the twin run differed there."""
        return SAFETY * self.by_subject.get((moment, subject), 0.0)


@dataclass(frozen=True, slots=True)
class Case:
    """One rule's question on one mesh.

    Attributes:
        spec: the mesh; None for a rule that is judged once per session.
        declared: what the adapter declares.
        runs: the evidence by run name, all that the rule names.
        noise: the measured noise of the trainer; empty means bitwise.
        partner: the mesh whose checkpoint is read by the runs that read another mesh's.
    """

    spec: MeshSpec | None
    declared: Declared
    runs: Mapping[str, RunEvidence]
    noise: Noise = Noise()
    partner: MeshSpec | None = None

    def __getitem__(self, run: str) -> RunEvidence:
        return self.runs[run]
