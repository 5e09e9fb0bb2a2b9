"""A rule, and what judging it can bring forth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pytest_cplife.rules.case import Case

Level = Literal["must", "should"]
Check = Callable[["Case"], "Iterable[Finding]"]

GROUPS = {
    "ADAPTER": "the adapter itself",
    "PLACE": "how ranks start and where tensors live",
    "PARAM": "parameters, buffers and their names",
    "GRAD": "steps, gradients and replicas",
    "SAVE": "the plain checkpoint",
    "LOAD": "what a load restores",
    "OPT": "optimizer state and hyperparameters",
    "SCHED": "learning-rate schedules",
    "DATA": "the data stream",
    "RNG": "random streams",
    "EMA": "averaged weights",
    "GO": "stop and go: resumed equals uninterrupted",
    "SERIAL": "the serial model and the checkpoint",
    "COMPAT": "earlier formats",
    "DCP": "sharded checkpoints",
    "CRASH": "interrupted saves",
    "SEC": "what a load executes",
    "MEM": "memory",
    "FUZZ": "fuzzed meshes, placements and plans",
}
"""Rule groups in the order of the lifecycle; a rule's id starts with its group."""


RESTORED = ("LOAD-02", "LOAD-04", "LOAD-07", "OPT-01", "OPT-02", "OPT-04", "SCHED-01", "EMA-03")
"""The rules that say what an ordinary load restores, part by part."""

PRESUMED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("LOAD-09", "GO", "SERIAL", "COMPAT", "CRASH", "FUZZ"), RESTORED),
    **dict.fromkeys(("SCHED-02", "SCHED-03"), ("OPT-04",)),
    "EMA-04": ("LOAD-02", "OPT-01", "OPT-02", "OPT-04"),
}
"""By a rule's id or its group: the `Rule.presumes` of rules that do not say it themselves."""

PURPOSE = ("GO", "SERIAL")
"""Groups whose answer a user wants whatever else is broken: they fail, and say where to begin."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which one subject broke a rule.

    Attributes:
        subject: FQN, file key or other name of what broke it.
        expected: what the rule asks for, as text.
        observed: what was seen, as text.
        moment: where in the lifecycle it was seen, such as ``"resumed: after load"``.
        ranks: ranks that saw it; empty where it is not a matter of ranks.
        step: the optimizer step, where it is a matter of steps.
        difference: largest absolute difference, where values were compared.
        budget: the difference that would have been allowed.
        note: a pattern that narrows the cause.
        detail: a longer text, such as a traceback, printed once.
    """

    subject: str
    expected: str
    observed: str
    moment: str = ""
    ranks: tuple[int, ...] = ()
    step: int | None = None
    difference: float | None = None
    budget: float | None = None
    note: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A comparison that was made and its outcome, whether or not it broke the rule."""

    what: str
    difference: float
    budget: float


Finding = Violation | Measurement


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold, stated once; names, help, reports and documentation derive from it.

    Attributes:
        id: group and number, such as ``GO-02``.
        title: a few words; the test's name derives from them.
        level: ``must``, or ``should`` where a sound trainer may decide otherwise.
        statement: one sentence that says what holds.
        why: what it costs when it does not.
        cause: what usually breaks it.
        runs: the scenario runs whose evidence it judges.
        needs: capabilities without which it is not covered.
        events: what the evidence must show for a pass to mean anything (names in `EVENTS`).
        budgeted: the rule compares two runs after steps, so that the trainer's own measured noise
            is allowed for.
        presumes: ids of rules that come before it. What one of them names when it fails is no news
            here: such violations are left out, and where no other is left the rule is blocked.
            After steps everything depends on all of it, so that a budgeted rule is blocked at once.
        since: the version that introduced it.
        check: the pure function from evidence to findings.
    """

    id: str
    title: str
    level: Level
    statement: str
    why: str
    cause: str
    runs: tuple[str, ...]
    check: Check = field(repr=False, compare=False)
    needs: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    budgeted: bool = False
    presumes: tuple[str, ...] = ()
    since: str = "0.1"

    @property
    def group(self) -> str:
        return self.id.partition("-")[0]

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in self.title.lower())

    @property
    def test_name(self) -> str:
        """``test_go_02_weights_equal_uninterrupted``."""
        return f"test_{self.id.lower().replace('-', '_')}_{self.slug}"


class Outcome(str, Enum):
    """How a rule came out on one mesh. Every rule has exactly one per mesh and run."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED = "expected"  # failed, as a file of expected failures says it does
    ADVICE = "advice"  # failed, and the user asked for what must hold only
    NOT_COVERED = "not covered"  # the adapter lacks a capability; the reason says which
    BLOCKED = "blocked"  # an earlier failure made the rule unanswerable
    NOT_RUN = "not run"  # deselected by the user


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one rule on one mesh, with all that a report needs.

    `replay` is the file of the example that failed, where the rule looks for one.
    """

    rule: str
    mesh: str
    outcome: Outcome
    reason: str = ""
    violations: tuple[Violation, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    seconds: float = 0.0
    replay: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        return cls(
            rule=data["rule"],
            mesh=data["mesh"],
            outcome=Outcome(data["outcome"]),
            reason=data["reason"],
            violations=tuple(
                Violation(**{**item, "ranks": tuple(item["ranks"])}) for item in data["violations"]
            ),
            measurements=tuple(Measurement(**item) for item in data["measurements"]),
            seconds=data["seconds"],
            replay=data["replay"],
        )
