"""Judging without pytest: what a session makes of a check's findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.evidence.assemble import CannotAssemble
from pytest_cplife.evidence.run import RunEvidence, RunFailure
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Measurement, Outcome, Rule, Violation
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings
from tests.rules.builders import Lab

ADAPTER = "pytest_cplife.reference_impl:Adapter"
TWO = MeshSpec.parse("cp=2")
Check = Callable[[Case], Iterator[Finding]]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(TensorStore(tmp_path / "lab"))


class Given(Session):
    """A session whose runs are given."""

    def __init__(self, folder: Path, *runs: RunEvidence, adapter: str = ADAPTER) -> None:
        super().__init__(Settings(adapter, folder))
        self.given = {run.name: run for run in runs}
        self.asked: list[str] = []

    def _run(self, name: str, spec: Any, partner: Any = None) -> RunEvidence:
        self.asked.append(name)
        if name not in self.given and name in ("uninterrupted", "saving", "resumed"):
            # What repeats a part of these is told by their rules if they fail alike: these do not.
            return replace(next(iter(self.given.values())), name=name, failure=None, ranks=())
        return self.given[name]


def ruled(check: Check, **data: Any) -> Rule:
    texts = {"level": "must", "statement": "It is.", "why": "So.", "cause": "This."}
    return Rule(
        **{"id": "GO-99", "title": "a rule", "runs": ("saving",), **texts, **data}, check=check
    )


def passing(case: Case) -> Iterator[Finding]:
    yield Measurement("something", 0.0, 0.0)


def failing(case: Case) -> Iterator[Finding]:
    yield Measurement("something", 1.0, 0.0)
    yield Violation("w", "a", "b")


def state(lab: Lab, name: str = "saving", **more: Any) -> RunEvidence:
    return lab.run(name, {"before save": lab.snapshots(**more)})


def test_passed_and_failed(lab: Lab, tmp_path: Path) -> None:
    session = Given(tmp_path, state(lab))
    good, bad = session.judge(ruled(passing), TWO), session.judge(ruled(failing), TWO)
    assert (good.outcome, good.mesh, good.violations) == (Outcome.PASSED, "cp2", ())
    assert [m.difference for m in good.measurements] == [0.0]
    assert bad.outcome is Outcome.FAILED
    assert [v.subject for v in bad.violations] == ["w"]
    assert bad.seconds > 0


def test_a_pass_that_saw_nothing_is_a_failure(lab: Lab, tmp_path: Path) -> None:
    session = Given(tmp_path, state(lab, step=0))
    rule = ruled(passing, events=("steps before the save",))
    (violation,) = session.judge(rule, TWO).violations
    assert (violation.subject, violation.expected) == ("vacuous", "a step before the save")
    # A real violation says more than that.
    found = session.judge(replace(rule, check=failing), TWO).violations
    assert [v.subject for v in found] == ["w"]


def test_what_the_trainer_lacks_is_not_covered(lab: Lab, tmp_path: Path) -> None:
    session = Given(tmp_path, state(lab))
    verdict = session.judge(ruled(passing, events=("buffers",)), TWO)
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_COVERED, "the model has no buffers")

    def check(case: Case) -> Iterator[Finding]:
        raise NotCovered("no such thing")
        yield

    assert session.judge(ruled(check), TWO).reason == "no such thing"


def test_capabilities(lab: Lab, tmp_path: Path) -> None:
    rule = ruled(passing, needs=("predict",))
    for offered, outcome in ((["predict"], Outcome.PASSED), ([], Outcome.NOT_COVERED)):
        run = lab.run("saving", facts={"capabilities": [offered] * 2})
        assert Given(tmp_path, run).judge(rule, TWO).outcome is outcome


def failed(lab: Lab, name: str, phase: str) -> RunEvidence:
    return lab.run(name, failure=RunFailure(phase, (1,), "rank 1 raised: no", "trace"))


def test_a_run_that_failed_offers_nothing_and_blocks(lab: Lab, tmp_path: Path) -> None:
    """Not being told of a capability is no proof that it is absent."""
    session = Given(tmp_path, failed(lab, "saving", "start"))
    verdict = session.judge(ruled(passing, needs=("predict",)), TWO)
    assert (verdict.outcome, verdict.reason) == (Outcome.BLOCKED, "blocked by SAVE-01")


def asking(case: Case) -> Iterator[Finding]:
    case["resumed"].at("end")
    yield Measurement("something", 0.0, 0.0)


def test_the_owner_of_a_failure_fails_and_the_others_are_blocked(lab: Lab, tmp_path: Path) -> None:
    runs = (state(lab), failed(lab, "resumed", "load"))
    session = Given(tmp_path, *runs)
    rule = ruled(asking, runs=("resumed",))
    assert session.judge(rule, TWO).reason == "blocked by LOAD-01"
    (violation,) = session.judge(replace(rule, id="LOAD-01"), TWO).violations
    assert (violation.subject, violation.observed) == ("load (resumed)", "rank 1 raised: no")
    assert (violation.ranks, violation.detail) == ((1,), "trace")


def test_a_load_of_another_meshs_checkpoint_is_told_once(lab: Lab, tmp_path: Path) -> None:
    here = lab.on("cp=2")
    crossed, resharding = failed(here, "crossed", "load"), failed(here, "resharding", "load")
    runs = [failed(here, name, "load") for name in ("moved over", "moved over sharded")]
    session = Given(tmp_path, here.run("resumed"), crossed, resharding, *runs)

    def reason(run: str) -> str:
        return session.judge(ruled(passing, runs=(run,), id="CRASH-36"), TWO).reason

    assert reason("moved over") == "blocked by LOAD-09"
    # A phase of another name is another part; what ends there is for the rule itself to tell.
    assert reason("moved over sharded") == ""
    session.given["resharding"] = failed(here, "resharding", "load sharded")
    assert reason("moved over sharded") == "blocked by DCP-05"
    session.given["crossed"] = here.run("crossed")
    assert reason("moved over") == ""


def test_a_failure_further_up_blocks_too(lab: Lab, tmp_path: Path) -> None:
    held = lab.run("resumed", held_back="saving")
    rule = ruled(asking, runs=("resumed",))
    session = Given(tmp_path, failed(lab, "saving", "train"), held)
    assert session.judge(rule, TWO).reason == "blocked by SAVE-01"
    # A save that came to its end and left no file is its own rule's affair.
    silent = lab.run("saving", phases=("save",))
    assert Given(tmp_path, silent, held).judge(rule, TWO).reason == "blocked by SAVE-01"


def test_parts_that_make_up_no_tensor_are_a_violation(lab: Lab, tmp_path: Path) -> None:
    """Any check may ask for a full tensor; ranks that disagree are no fault of the suite."""

    def check(case: Case) -> Iterator[Finding]:
        yield Measurement("something", 0.0, 0.0)
        raise CannotAssemble("rank 1 holds (1,) where (2,) was due")

    verdict = Given(tmp_path, state(lab)).judge(ruled(check), TWO)
    assert verdict.outcome is Outcome.FAILED
    (violation,) = verdict.violations
    assert violation.observed == "rank 1 holds (1,) where (2,) was due"


def noisy(case: Case) -> Iterator[Finding]:
    if case.noise.budget("end", "w") < 1.0:
        yield Violation("w", "a", "b")


@pytest.mark.parametrize(
    ("budgeted", "value", "outcome"),
    [
        (True, 3.5, Outcome.PASSED),
        (True, 3.0, Outcome.FAILED),
        (False, 3.5, Outcome.FAILED),
    ],
)
def test_noise_is_measured_only_where_it_matters(
    lab: Lab, tmp_path: Path, budgeted: bool, value: float, outcome: Outcome
) -> None:
    def run(name: str, last: float) -> RunEvidence:
        seen = lab.snapshots(parameters={"w": lab.sharded([1.0, 2.0, last])})
        moments = ("after first step", "at save point", "after next step", "end")
        return lab.run(name, dict.fromkeys(moments, seen))

    session = Given(tmp_path, state(lab), run("uninterrupted", 3.0), run("twin", value))
    assert session.judge(ruled(noisy, budgeted=budgeted), TWO).outcome is outcome
    assert ("twin" in session.asked) is budgeted
    session.asked.clear()
    session.judge(ruled(passing, budgeted=True), TWO)
    assert session.asked == ["saving"]


def test_nothing_is_run_for_an_adapter_that_has_no_shape(tmp_path: Path) -> None:
    session = Given(tmp_path, adapter="no_such_module:Adapter")
    assert session.judge(ruled(passing), TWO).reason == "blocked by ADAPTER-01"
    assert session.asked == []
    assert session.declared.problems
