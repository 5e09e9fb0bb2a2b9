"""A stand-in for the registry and the session, so that the plugin is tested for itself alone.

Loaded with ``-p fakes`` into the pytest process under test, and by xdist into its workers.
What a fake rule's outcome is stands in its id; the environment variable ``FAKE`` changes it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules import registry
from pytest_cplife.rules.model import Measurement, Outcome, Rule, Verdict, Violation
from pytest_cplife.settings import Settings

RULES = (
    ("ADAPTER-01", "the adapter has the shape of a LifecycleAdapter", ()),
    ("GRAD-01", "weights move", ()),
    ("SAVE-01", "file holds plain tensors", ()),
    ("SCHED-01", "learning rate continues", ("schedulers",)),
    ("GO-01", "losses equal uninterrupted", ()),
    ("GO-02", "weights equal uninterrupted", ()),
    ("SERIAL-01", "serial model loads the file", ()),
)

BROKEN = Violation(
    subject="layers.0.weight",
    expected="bitwise equal",
    observed="other bytes",
    moment="resumed: after step",
    ranks=(0, 1),
    step=4,
    difference=float("inf"),
    budget=0.0,
    note="all parameters, by about the learning rate",
    detail="Traceback:\n  the trainer's own line",
)


class FakeSession:
    """Judges by name: see `_outcome`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def environment(self) -> dict[str, str]:
        return {"torch": "0.0"}

    def close(self) -> None:
        if "FAKE_CLOSED" in os.environ:
            Path(os.environ["FAKE_CLOSED"]).write_text(str(self._settings.workdir))

    def judge(self, rule: Rule, spec: MeshSpec | None) -> Verdict:
        from pytest_cplife.loading import check_adapter

        mesh = "" if spec is None else str(spec)
        problems = check_adapter(self._settings.adapter)
        if rule.id == "ADAPTER-01":
            found = tuple(Violation("adapter", "a LifecycleAdapter", one) for one in problems)
            return Verdict(
                rule.id, mesh, Outcome.FAILED if found else Outcome.PASSED, violations=found
            )
        if problems:
            return Verdict(rule.id, mesh, Outcome.BLOCKED, "blocked by ADAPTER-01")
        return _outcome(rule, mesh)


def _outcome(rule: Rule, mesh: str) -> Verdict:
    fake = os.environ.get("FAKE", "")
    if fake == "crash" and rule.id == "SAVE-01":
        raise RuntimeError("the suite itself broke")
    if fake == "blocked":
        return Verdict(rule.id, mesh, Outcome.BLOCKED, "blocked by nobody")
    if rule.id == "SCHED-01":
        return Verdict(rule.id, mesh, Outcome.NOT_COVERED, "the run has no schedulers")
    if rule.id == "GO-02" and mesh == "dp2-cp2" and fake != "healthy":
        return Verdict(rule.id, mesh, Outcome.FAILED, violations=(BROKEN,))
    measured = (Measurement("layers.0.weight", 0.0, 1e-6),)
    return Verdict(rule.id, mesh, Outcome.PASSED, measurements=measured)


def _rule(id: str, title: str, needs: tuple[str, ...]) -> Rule:
    return Rule(
        id=id,
        title=title,
        level="should" if id == "GO-02" and os.environ.get("FAKE") == "should" else "must",
        statement=f"It holds that {title}.",
        why="A run that is not the same.",
        cause="Something was not restored.",
        runs=(),
        needs=needs,
        check=lambda case: (),
    )


def pytest_addoption() -> None:
    """The first hook there is: some options are answered before pytest is configured."""
    rules = tuple(_rule(*data) for data in RULES)
    registry.all_rules = lambda: rules
    module = ModuleType("pytest_cplife.session")
    module.Session = FakeSession  # type: ignore[attr-defined]
    sys.modules["pytest_cplife.session"] = module
