"""What a step of a plan draws from generators of the trainer's own, held against the model's.

Such a generator cannot be seeded from outside, as the global streams are before every step. What a
rank draws on another mesh, or by the policy ``"offset"`` after a resume, is other noise then, and
where a run is from there on the model cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_cplife.evidence.journal import RankJournal


@dataclass(frozen=True, slots=True)
class Draws:
    """One optimizer step of all ranks.

    Attributes:
        states: of generators of the trainer's own, that were drawn from.
        samples: what was trained on; none where the trainer does not tell.
    """

    states: frozenset[object]
    samples: frozenset[object]

    @classmethod
    def of(cls, journals: Iterable[RankJournal], name: str) -> Draws:
        """Those that the ranks have noted under `name`."""
        facts = [journal.facts for journal in journals]
        return cls(
            *(
                frozenset(value for table in facts for value in table.get(f"{what} {name}", ()))
                for what in ("own draws", "sample_ids")
            )
        )

    def otherwise(self, model: Sequence[Draws], *, crossed: bool, policy: str) -> bool:
        """Whether it is other noise than the model's, and rightly so.

        On other samples than the model's nothing is excused: then those are what differs first.

        Args:
            model: the model's steps up to this one.
            crossed: the state has been on several meshes.
            policy: what the trainer says of resumes.
        """
        if not self.samples or self.samples != model[-1].samples:
            return False
        if crossed:
            return self.states != model[-1].states
        # What the model has drawn from before is no fresh noise: a replay is a fault.
        return policy == "offset" and bool(self.states.difference(*(d.states for d in model)))
