"""CRASH: interrupted saves. Each rule once for plain and once for sharded checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.generations import Generations, differences
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.parts import compare_parts
from pytest_cplife.rules.phases import CRASH_OFFSETS, completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.save import unchanged


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of checkpoint: the ending of its runs' names, and what its methods are called."""

    suffix: str
    word: str
    save: str
    load: str
    needs: tuple[str, ...]

    def id(self, number: int) -> str:
        return f"CRASH-{number + CRASH_OFFSETS[self.suffix]:02}"


KINDS = (
    Kind("", "", "save()", "load()", ()),
    Kind(
        " sharded",
        "sharded ",
        "save_sharded()",
        "load_sharded()",
        ("save_sharded", "load_sharded"),
    ),
)
Question = Callable[["Interrupted"], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The question of one rule about one kind of checkpoint."""

    case: Case
    kind: Kind
    rule: str

    def run(self, name: str) -> RunEvidence:
        return self.case[name + self.kind.suffix]

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


def interrupted(
    number: int, title: str, *, runs: tuple[str, ...], **texts: str
) -> Callable[[Question], Question]:
    """Register the decorated question as a rule for each kind of checkpoint.

    In `title` and `texts`, ``{word}``, ``{save}`` and ``{load}`` stand for those of the kind.
    """

    def register(question: Question) -> Question:
        for kind in KINDS:
            words = {"word": kind.word, "save": kind.save, "load": kind.load}
            id = kind.id(number)

            def check(case: Case, kind: Kind = kind, id: str = id) -> Iterator[Finding]:
                yield from question(Interrupted(case, kind, id))

            rule(
                id,
                title.format(**words),
                runs=tuple(name + kind.suffix for name in runs),
                needs=kind.needs,
                **{name: text.format(**words) for name, text in texts.items()},
            )(check)
        return question

    return register


@interrupted(
    1,
    "a failed {word}save ends on every rank",
    level="should",
    statement="A {save} in which one rank cannot write ends on every rank, with an exception on all"
    " of them or on none.",
    why="The others wait for the rank that has left until a timeout ends the job, or go on without"
    " it.",
    cause="The rank that writes raises before a barrier, and nobody tells the others.",
    runs=("failing",),
)
def ends_everywhere(ask: Interrupted) -> Iterator[Finding]:
    run = ask.run("failing")
    if run.failure is not None and run.failure.phase == "failing save":
        yield Violation(
            run.ranks[run.failure.ranks[0]].facts["attempt"],
            "ends on every rank",
            run.failure.headline,
            ranks=run.failure.ranks,
            detail=run.failure.detail,
        )
        return
    for state, outcomes in _attempts(run):
        raising = tuple(rank for rank, outcome in enumerate(outcomes) if outcome)
        if raising and len(raising) < len(outcomes):
            rest = [str(rank) for rank in range(len(outcomes)) if rank not in raising]
            yield Violation(
                state.name,
                "an exception on all ranks or on none",
                f"{outcomes[raising[0]]}; ranks {', '.join(rest)} return",
                ranks=raising,
            )
    if len(run.ranks) == 1:
        raise NotCovered("one rank has no others to tell")


def _attempts(run: RunEvidence) -> list[tuple[FolderState, list[str]]]:
    """What each disturbed save left, and how it ended on each rank.

    Raises:
        NotCovered: none was disturbed.
    """
    attempts = [(state, run.fact(state.name)) for state in told(run, "states")]
    if not any(any(outcomes) for _, outcomes in attempts) and not _unsaved(run, attempts):
        raise NotCovered("no write of a rank could be made to fail")
    return attempts


def _unsaved(run: RunEvidence, attempts: list[tuple[FolderState, list[str]]]) -> bool:
    return any(state.checkpoint in ("", told(run, "older checkpoint")) for state, _ in attempts)


@interrupted(
    2,
    "a {word}save that was not made is not told as made",
    level="must",
    statement="Where {save} returns on every rank although one rank could not write, the path holds"
    " what was to be saved.",
    why="The older checkpoint is deleted, and the job ends, in the belief that there is a newer"
    " one.",
    cause="An error of the disk that is caught and put down in a log.",
    runs=("failing", "retried"),
)
def not_told_as_made(ask: Interrupted) -> Iterator[Finding]:
    run = ask.run("failing")
    attempts, older = _attempts(run), told(run, "older checkpoint")
    generations = ask.generations("failing", "retried", "generation 2")
    for state, outcomes in attempts:
        if any(outcomes):
            continue
        if state.checkpoint in ("", older):
            left = "the older checkpoint is there" if state.checkpoint else "nothing is there"
            text = f"no exception, and {left}"
            yield Violation(state.name, "an exception or the new checkpoint", text)
        else:
            yield from generations.judge(state)


@interrupted(
    3,
    "a failed {word}save leaves the older checkpoint",
    level="should",
    statement="After a {save} over an older checkpoint that failed on one rank, the path loads as"
    " the older or the newer one, whole.",
    why="The disk is full, the job restarts, and the only checkpoint is gone.",
    cause="The new checkpoint is written over the old one, or the old one is removed first.",
    runs=("failing", "retried"),
)
def leaves_the_older(ask: Interrupted) -> Iterator[Finding]:
    run = ask.run("failing")
    attempts, older = _attempts(run), told(run, "older checkpoint")
    generations = ask.generations("failing", "retried", "generation 1", "generation 2")
    for state, outcomes in attempts:
        if any(outcomes) and not state.fresh and state.checkpoint != older:
            yield from generations.judge(state)


@interrupted(
    4,
    "a failed {word}save leaves no half checkpoint",
    level="must",
    statement="After a {save} to a new path that failed on one rank, {load} refuses what is there"
    " on every rank, if it is not whole.",
    why="A restart takes it for a checkpoint and goes on from a mixture.",
    cause="What marks a checkpoint as finished is written before the data, or nothing marks it.",
    runs=("failing", "retried"),
)
def leaves_no_half(ask: Interrupted) -> Iterator[Finding]:
    attempts = _attempts(ask.run("failing"))
    generations = ask.generations("failing", "retried", "generation 2")
    for state, outcomes in attempts:
        if any(outcomes) and state.fresh and state.checkpoint:
            yield from generations.judge(state, refusal_is_right=True)


@interrupted(
    5,
    "a failed {word}save changes nothing that lives",
    level="must",
    statement="After {save} has failed, weights, buffers, optimizer state, averages, schedules,"
    " counters and random streams are what they were.",
    why="The job goes on, with averaged weights in the model or state that was moved away.",
    cause="State that is exchanged or converted for the save, and put back only where it succeeds.",
    runs=("failing",),
)
def changes_nothing(ask: Interrupted) -> Iterator[Finding]:
    run = ask.run("failing")
    _attempts(run)
    before, after = run.at("generation 2"), run.at("after failed saves")
    yield from unchanged(ask.case, run, before, after)


@interrupted(
    6,
    "{word}saving works again after it failed",
    level="must",
    statement="After {save} has failed, a step completes, and the next {save} gives a checkpoint"
    " that loads as what was saved.",
    why="A disk that was full for a minute need not be the end of the job.",
    cause="A lock, a temporary file or a pending write of the failed save in the way of the next.",
    runs=("failing", "retried"),
)
def works_again(ask: Interrupted) -> Iterator[Finding]:
    yield from ask.completes("failing", "retried")
    yield from _loads_as_saved(ask, "failing", "retried")


def _loads_as_saved(ask: Interrupted, source: str, loads: str) -> Iterator[Finding]:
    saving, loading = ask.run(source), ask.run(loads)
    last = told(loading, "states")[0]
    saved, loaded = saving.at(last.name), loading.at(last.tree)
    yield from compare_parts(
        ask.case, saving, saved, loaded, *_SAVED, moment=f"{loads}: {last.name}"
    )


_SAVED = ("weights", "optimizer state", "averages", "counters")


@interrupted(
    7,
    "nothing is left behind of an interrupted {word}save",
    level="should",
    statement="Once {save} has succeeded again, after one that failed and in a restart after one"
    " that was killed, the folder holds what it holds after an undisturbed {save}.",
    why="Every interruption leaves as much as a checkpoint, until the disk is full of them.",
    cause="Temporary names that are new for every save, which nobody removes.",
    runs=("overwriting", "failing", "restarted"),
)
def nothing_left(ask: Interrupted) -> Iterator[Finding]:
    wanted: Counter[str] = told(ask.run("overwriting"), "names")
    told(ask.run("failing"), "names")
    for name in ("failing", "restarted"):
        run = ask.run(name)
        # Where no rank can be killed there is no restart.
        left = run.ranks[0].facts.get("names", wanted) - wanted if run.ranks else Counter()
        for entry, count in left.items():
            yield Violation(entry, "not there", f"{count} more than usual", f"{name}: save again")


@interrupted(
    8,
    "a {word}save replaces an older checkpoint",
    level="must",
    statement="A {save} to a path where an older checkpoint lies replaces it: {load} gives the"
    " newer one.",
    why="A job that keeps one path for its latest checkpoint resumes from the wrong one.",
    cause="An existing path that is taken as done, or files of the older checkpoint that stay.",
    runs=("overwriting", "recovered"),
)
def replaces(ask: Interrupted) -> Iterator[Finding]:
    yield from ask.completes("overwriting", "recovered")
    yield from _loads_as_saved(ask, "overwriting", "recovered")


@interrupted(
    9,
    "at no instant of a {word}save is the older checkpoint lost",
    level="should",
    statement="A job killed at any instant of a {save} over an older checkpoint leaves a path that"
    " loads as the older or the newer one, whole.",
    why="Preemption comes at any instant, and then the only checkpoint is gone.",
    cause="Writing in place, or an older checkpoint that is removed before the newer has its name.",
    runs=("overwriting", "recovered"),
)
def never_lost(ask: Interrupted) -> Iterator[Finding]:
    generations = ask.generations("overwriting", "recovered", "generation 1", "generation 2")
    for state in _instants(ask, fresh=False):
        yield from generations.judge(state)


def _instants(ask: Interrupted, *, fresh: bool) -> list[FolderState]:
    states = [s for s in told(ask.run("recovered"), "states")[1:] if s.fresh == fresh]
    if not states:
        raise NotCovered("no operation on files was seen during the save")
    return states


@interrupted(
    10,
    "at no instant is half a {word}checkpoint taken for one",
    level="must",
    statement="What a job killed at any instant of a {save} to a new path leaves there is refused"
    " by {load} on every rank, if it is not whole.",
    why="A restart takes it for a checkpoint and goes on from a mixture.",
    cause="What marks a checkpoint as finished is written before the data, or nothing marks it.",
    runs=("overwriting", "recovered"),
)
def never_half(ask: Interrupted) -> Iterator[Finding]:
    generations = ask.generations("overwriting", "recovered", "generation 1")
    for state in _instants(ask, fresh=True):
        yield from generations.judge(state, refusal_is_right=True)


@interrupted(
    11,
    "a rank killed in a {word}save leaves a whole checkpoint",
    level="should",
    statement="After a rank was killed in the middle of writing, in a {save} over an older"
    " checkpoint, the path loads in fresh processes as the older or the newer one, whole.",
    why="One node dies, the others notice, and what they do then decides what the restart finds.",
    cause="Writing in place, or ranks that finish or clean up what the dead one has begun.",
    runs=("killed", "restarted"),
)
def survives_a_kill(ask: Interrupted) -> Iterator[Finding]:
    saving, loading = _killed(ask), ask.run("restarted")
    saved, again = loading.at("after restart"), loading.at("loaded again")
    generations = Generations(
        ask.case,
        (saving.at("generation 1"), saving.at("generation 2")),
        loading,
        frozenset(differences(ask.case, loading, saved, again)),
    )
    yield from generations.judge_load("checkpoint", "after load", loading.fact("refused"))


def _killed(ask: Interrupted) -> RunEvidence:
    run = ask.run("killed")
    victims = [rank for rank, journal in enumerate(run.ranks) if journal.facts.get("doomed")]
    if not victims:
        run.fact("killed")  # Raises, with the reason that nobody was.
    return run


@interrupted(
    12,
    "a restart goes on from an interrupted {word}save",
    level="must",
    statement="Fresh processes that find what a killed {save} left, load it or begin anew, train a"
    " step and save to the same path; that checkpoint loads as what was saved.",
    why="A restart that fails on the remains of the last one needs somebody who removes them.",
    cause="Temporary files, locks or half directories that the next save takes for somebody"
    " else's.",
    runs=("killed", "restarted"),
)
def restarts(ask: Interrupted) -> Iterator[Finding]:
    _killed(ask)
    yield from ask.completes("restarted")
    run = ask.run("restarted")
    saved, again = run.at("after restart"), run.at("loaded again")
    yield from compare_parts(ask.case, run, saved, again, *_SAVED)
