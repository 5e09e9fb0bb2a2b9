"""Which of a run's saved states it is that a load has brought back, and whether it is all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.evidence.run import Moment, RunEvidence
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.common import those
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.parts import PARTS, compare_parts


@dataclass(frozen=True, slots=True)
class Generations:
    """The states that were saved, and the loads that are held against them.

    Attributes:
        case: whose runs they are.
        saved: the states, oldest first.
        loads: the run that has loaded what interrupted saves left.
        not_restored: subjects that an undisturbed load does not bring back either, which other
            rules tell of.
    """

    case: Case
    saved: tuple[Moment, ...]
    loads: RunEvidence
    not_restored: frozenset[str]

    def judge(self, state: FolderState, *, refusal_is_right: bool = False) -> Iterator[Violation]:
        """Find that `state` gave no whole generation when it was loaded.

        Args:
            refusal_is_right: whether all ranks may as well refuse it.
        """
        outcomes = self.loads.fact(f"{state.tree}: refused")
        yield from self.judge_load(state.name, state.tree, outcomes, refusal_is_right)

    def judge_load(
        self, subject: str, moment: str, outcomes: Sequence[str], refusal_is_right: bool = False
    ) -> Iterator[Violation]:
        """The same for the load seen at `moment`, with its exception on each rank."""
        refusing = tuple(rank for rank, outcome in enumerate(outcomes) if outcome)
        wanted = " or ".join(moment.name for moment in self.saved) + ", whole"
        if refusing and len(refusing) < len(outcomes):
            text = f"refused by {those(refusing)} and loaded by the others"
            yield Violation(subject, "one outcome on all ranks", text, ranks=refusing)
        elif refusing and not refusal_is_right:
            yield Violation(subject, wanted, f"refused: {outcomes[0].rstrip(': ')}", ranks=refusing)
        elif not refusing:
            found = self._mixture(self.loads.at(moment))
            if found:
                yield Violation(subject, wanted, found)

    def _mixture(self, loaded: Moment) -> str:
        """What is of which generation, "" where all is of one."""
        fits = {
            part: [saved.name for saved in self.saved if not self._differ(saved, loaded, part)]
            for part in PARTS
        }
        if set.intersection(*map(set, fits.values())):
            return ""
        # What is the same in all generations tells nothing.
        telling = {part: names for part, names in fits.items() if len(names) < len(self.saved)}
        texts = [f"{part} of {names[0] if names else 'neither'}" for part, names in telling.items()]
        return ", ".join(texts)

    def _differ(self, saved: Moment, loaded: Moment, part: str) -> bool:
        return bool(differences(self.case, self.loads, saved, loaded, part) - self.not_restored)


def differences(
    case: Case, run: RunEvidence, expected: Moment, observed: Moment, *parts: str
) -> set[str]:
    """Names of what is not the same at both moments, in the named parts or in any."""
    found = compare_parts(case, run, expected, observed, *(parts or PARTS))
    return {finding.subject for finding in found if isinstance(finding, Violation)}
