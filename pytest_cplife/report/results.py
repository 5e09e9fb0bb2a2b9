"""Every rule on every mesh, and what became of it: the denominator of a run.

The plan is made from the registry and the meshes before anything runs, so a test that
was deselected, never reached or lost with its worker is still counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cplife.expected import Expectations
from pytest_cplife.rules.model import Outcome, Verdict

Key = tuple[str, str]
"""A rule's id and a mesh's; the mesh is empty where a rule is judged once."""


@dataclass(slots=True)
class Plan:
    """What a run has to account for, and what it was made with; the same in every worker."""

    keys: list[Key] = field(default_factory=list)
    selected: list[Key] = field(default_factory=list)
    meshes: list[str] = field(default_factory=list)
    adapter: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "keys": self.keys,
            "selected": self.selected,
            "meshes": self.meshes,
            "adapter": self.adapter,
            "environment": self.environment,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        return cls(
            keys=[(rule, mesh) for rule, mesh in data["keys"]],
            selected=[(rule, mesh) for rule, mesh in data["selected"]],
            meshes=list(data["meshes"]),
            adapter=dict(data["adapter"]),
            environment=dict(data["environment"]),
        )


class Results:
    """The verdicts of a run, in the order of its plan."""

    def __init__(self, plan: Plan, verdicts: Iterable[Verdict] = ()) -> None:
        self.plan = plan
        self._verdicts: dict[Key, Verdict] = {}
        for verdict in verdicts:
            self.add(verdict)

    def add(self, verdict: Verdict) -> None:
        """Record `verdict`; a later one for the same rule and mesh (a rerun) replaces it."""
        self._verdicts[verdict.rule, verdict.mesh] = verdict

    def verdicts(self) -> list[Verdict]:
        """One verdict for every entry of the plan, then any that the plan does not know."""
        selected = set(self.plan.selected)
        known = set(self.plan.keys)
        planned = [
            self._verdicts.get(key)
            or Verdict(*key, Outcome.NOT_RUN, "not reached" if key in selected else "not selected")
            for key in self.plan.keys
        ]
        return planned + [one for key, one in self._verdicts.items() if key not in known]

    def counts(self) -> dict[Outcome, int]:
        """How many came out how; every outcome has its number, and they add up to the plan."""
        counter = Counter(verdict.outcome for verdict in self.verdicts())
        return {outcome: counter[outcome] for outcome in Outcome}

    def problems(self, expectations: Expectations, *, narrowed: bool, certify: bool) -> list[str]:
        """What is wrong with the run as a whole, beyond its single failures.

        Args:
            expectations: the expected failures the run was given.
            narrowed: the user chose the meshes, so an entry for another one is none of its
                business.
            certify: anything but passed and not covered is too little.
        """
        verdicts = self.verdicts()
        counts = self.counts()
        problems = []
        if len(verdicts) != len(self.plan.keys):
            problems.append(
                f"{len(verdicts)} verdicts for {len(self.plan.keys)} planned: "
                "a rule was judged that the plan does not hold"
            )
        judged = len(verdicts) - counts[Outcome.NOT_RUN]
        broken = sum(counts[o] for o in (Outcome.FAILED, Outcome.ADVICE, Outcome.EXPECTED))
        if judged and not counts[Outcome.PASSED] + broken:
            problems.append("no rule passed and none failed, so the run says nothing")
        elif counts[Outcome.BLOCKED] and not broken:
            problems.append(f"{counts[Outcome.BLOCKED]} blocked, though nothing failed")
        problems += _unused(expectations, verdicts, narrowed=narrowed)
        if certify:
            for outcome in (Outcome.NOT_RUN, Outcome.EXPECTED, Outcome.ADVICE, Outcome.BLOCKED):
                if counts[outcome]:
                    problems.append(f"not certified: {counts[outcome]} {outcome.value}")
        return problems


def _unused(
    expectations: Expectations, verdicts: Iterable[Verdict], *, narrowed: bool
) -> Iterable[str]:
    for entry in expectations.entries:
        covered = [one for one in verdicts if entry.covers(one.rule, one.mesh)]
        if not covered and narrowed:
            continue
        if all(one.outcome is Outcome.NOT_COVERED for one in covered):
            what = "is not covered" if covered else "is not among the rules and meshes of this run"
            yield f"unused expected failure: {entry} {what}; take it out of the file"
