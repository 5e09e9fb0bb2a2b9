"""Whatever part of a run fails, one rule answers for it, and it asks for that run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import pytest

from pytest_cplife.evidence.run import RunFailure, Unanswered
from pytest_cplife.rules.model import Measurement, Violation
from pytest_cplife.rules.phases import OWNERS, completes, owner
from pytest_cplife.rules.registry import get_rule
from pytest_cplife.scenarios import order
from pytest_cplife.scenarios.table import RUNS
from tests.rules.builders import Lab


@cache
def functions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    """Functions and methods of a module by name."""
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def phases(module: ModuleType, function: str, seen: set[str]) -> Iterator[str]:
    """Patterns of the phases that a script's source opens, in the functions it calls as well."""
    known = functions(module)
    if function in seen:
        return
    seen.add(function)
    for node in ast.walk(known[function]):
        if not isinstance(node, ast.Call):
            continue
        callee = node.func
        name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
        if name == "phase":
            yield pattern(node.args[0])
        elif isinstance(callee, ast.Attribute) and name in STAGE and is_stage(callee.value):
            yield from phases(order, name, seen)
        elif isinstance(callee, ast.Name) and name in known:
            yield from phases(module, name, seen)
        elif isinstance(callee, ast.Name) and inspect.isfunction(getattr(module, name, None)):
            home = inspect.getmodule(getattr(module, name))
            if home is not None and home.__name__.startswith("pytest_cplife.scenarios"):
                yield from phases(home, name, seen)


STAGE = {name for name in dir(order.Stage) if not name.startswith("_")}


def is_stage(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("stage", "self")


def pattern(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value))
    assert isinstance(node, ast.JoinedStr), f"a phase is named by {ast.unparse(node)}"
    return "".join(
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
        for part in node.values
    )


def opened(run: str) -> set[str]:
    script = RUNS[run].script
    module = inspect.getmodule(script)
    assert module is not None
    return set(phases(module, script.__name__, set()))


# Runs whose failures matter to no rule: where they fail, nothing is known of noise.
JUDGED = [name for name in RUNS if name not in ("twin", "nudged")]


def test_the_source_is_read_right() -> None:
    assert opened("saving") == {"start", "train", "save", r"train\ on", "close"}
    assert "read\\ .+" in opened("files")


@pytest.mark.parametrize("run", JUDGED)
def test_every_phase_has_an_owner(run: str) -> None:
    owned = [phase for name, phase in OWNERS if name == run]
    assert owned, f"no rule answers for the run {run!r}"
    for text in opened(run):
        assert any(re.fullmatch(text, phase) for phase in owned), f"{run}: {text}"


@pytest.mark.parametrize(("run", "phase"), list(OWNERS), ids=str)
def test_every_owned_phase_is_opened(run: str, phase: str) -> None:
    assert run in RUNS
    assert any(re.fullmatch(text, phase) for text in opened(run))


@pytest.mark.parametrize(("run", "phase"), list(OWNERS), ids=str)
def test_an_owner_asks_for_the_run(run: str, phase: str) -> None:
    """A rule that never looks at the run would pass while it is named as the blocker."""
    assert run in get_rule(OWNERS[run, phase]).runs


@pytest.mark.parametrize("run", JUDGED)
def test_a_failure_outside_any_phase_has_an_owner_too(run: str) -> None:
    assert run in get_rule(owner(run, "")).runs
    assert owner(run, "no such phase") == owner(run, "")


def test_a_run_that_nobody_knows() -> None:
    assert owner("no such run", "start") == "ADAPTER-01"


def failure(phase: str) -> RunFailure:
    return RunFailure(phase, (1,), "rank 1 raised: ValueError: no", "the traceback")


def test_a_phase_of_ones_own_that_failed_is_a_violation(lab: Lab) -> None:
    case = lab.case(lab.run("saving", failure=failure("save")))
    (violation,) = completes(case, "SAVE-01", "saving")
    assert isinstance(violation, Violation)
    assert violation.subject == "save (saving)"
    assert violation.observed == "rank 1 raised: ValueError: no"
    assert (violation.ranks, violation.detail) == ((1,), "the traceback")


def test_before_the_first_phase(lab: Lab) -> None:
    case = lab.case(lab.run("saving", failure=failure("")))
    (violation,) = completes(case, "SAVE-01", "saving")
    assert isinstance(violation, Violation)
    assert violation.subject == "before the first phase (saving)"


def test_a_phase_of_anothers_that_failed_is_unanswered(lab: Lab) -> None:
    case = lab.case(lab.run("resumed", failure=failure("load")))
    with pytest.raises(Unanswered):
        list(completes(case, "GO-01", "resumed"))


def test_a_run_that_was_held_back_is_unanswered(lab: Lab) -> None:
    case = lab.case(lab.run("resumed", held_back="saving"))
    with pytest.raises(Unanswered):
        list(completes(case, "LOAD-01", "resumed"))


def test_what_completed_is_told(lab: Lab) -> None:
    case = lab.case(lab.run("resumed", phases=("start", "load")))
    assert list(completes(case, "LOAD-01", "resumed")) == [
        Measurement("phases of resumed left open", 0.0, 0.0)
    ]
