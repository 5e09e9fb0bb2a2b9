"""What the rules about interrupted saves share: each is asked of plain and of sharded ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.generations import Generations, differences
from pytest_cplife.rules.model import RESTORED, Finding
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import completes, crash_id
from pytest_cplife.rules.registry import rule


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of checkpoint: the ending of its runs' names, and what its methods are called.

    Attributes:
        needs: the capabilities without which there is none.
        presumes: the rules that say what an ordinary load restores.
        crossing: the rule that says what one on another mesh does.
    """

    suffix: str
    word: str
    save: str
    load: str
    needs: tuple[str, ...]
    presumes: tuple[str, ...]
    crossing: str

    def id(self, number: int) -> str:
        return crash_id(number, self.suffix)


KINDS = (
    Kind("", "", "save()", "load()", (), RESTORED, "LOAD-09"),
    Kind(
        " sharded",
        "sharded ",
        "save_sharded()",
        "load_sharded()",
        ("save_sharded", "load_sharded"),
        ("DCP-04",),
        "DCP-05",
    ),
)
SAVED_PARTS = ("weights", "optimizer state", "averages", "counters")
"""What a load gives back in any case; how, other groups judge."""

Question = Callable[["Interrupted"], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The question of one rule about one kind of checkpoint."""

    case: Case
    kind: Kind
    rule: str

    def run(self, name: str, *, of_partner: bool = False) -> RunEvidence:
        """The run `name` about this kind, on this mesh or on the partner."""
        return self.case[name + self.kind.suffix + (" of partner" if of_partner else "")]

    def needs_partner(self) -> None:
        """
        Raises:
            NotCovered: there is no other mesh.
        """
        if self.case.partner is None:
            raise NotCovered("only one mesh is run, so there is no other to load on")

    def needs_replacement(self, name: str, *, of_partner: bool = False) -> None:
        """
        Raises:
            NotCovered: the trainer does not save to a path where a checkpoint lies.
        """
        for journal in self.run(name, of_partner=of_partner).ranks:
            if journal.facts.get("refusal"):
                raise NotCovered(journal.facts["refusal"])

    def completes(self, *names: str) -> Iterator[Finding]:
        yield from completes(self.case, self.rule, *(name + self.kind.suffix for name in names))

    def generations(self, source: str, loads: str, *names: str) -> Generations:
        """The generations `names` that the run `source` saved, and the run `loads` of it.

        The last thing that `source` saved was not disturbed, and `loads` loads it first.
        """
        saving, loading = self.run(source), self.run(loads)
        last = told(loading, "states")[0]
        saved, loaded = saving.at(last.name), loading.at(last.tree)
        return Generations(
            self.case,
            tuple(saving.at(name) for name in names),
            loading,
            frozenset(differences(self.case, loading, saved, loaded)),
        )


def told(run: RunEvidence, name: str) -> Any:
    """A fact that rank 0 has noted alone."""
    if not run.ranks or name not in run.ranks[0].facts:
        run.fact(name)  # Raises, with the reason that it is not there.
    return run.ranks[0].facts[name]


def loads_as_saved(ask: Interrupted, source: str, loads: str) -> Iterator[Finding]:
    """Find what the undisturbed checkpoint of `source` has not given back to the run `loads`."""
    saving, loading = ask.run(source), ask.run(loads)
    last = told(loading, "states")[0]
    saved, loaded = saving.at(last.name), loading.at(last.tree)
    yield from compare_parts(
        ask.case, saving, saved, loaded, *SAVED_PARTS, moment=f"{loads}: {last.name}"
    )


def interrupted(
    number: int,
    title: str,
    *,
    runs: tuple[str, ...],
    crosses: bool = False,
    presumes: tuple[int, ...] = (),
    **texts: str,
) -> Callable[[Question], Question]:
    """Register the decorated question as a rule for each kind of checkpoint.

    In `title` and `texts`, ``{word}``, ``{save}`` and ``{load}`` stand for those of the kind.

    Args:
        crosses: whether it is about a load on another mesh than the save's.
        presumes: the numbers of such rules that come before it.
    """

    def register(question: Question) -> Question:
        for kind in KINDS:
            words = {"word": kind.word, "save": kind.save, "load": kind.load}
            id = kind.id(number)
            earlier = (*((kind.crossing,) if crosses else ()), *map(kind.id, presumes))

            def check(case: Case, kind: Kind = kind, id: str = id) -> Iterator[Finding]:
                yield from question(Interrupted(case, kind, id))

            check.__module__ = question.__module__
            rule(
                id,
                title.format(**words),
                runs=tuple(name + kind.suffix for name in runs),
                needs=kind.needs,
                presumes=(*kind.presumes, *earlier),
                **{name: text.format(**words) for name, text in texts.items()},
            )(check)
        return question

    return register
