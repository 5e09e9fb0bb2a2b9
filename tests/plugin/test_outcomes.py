"""What becomes of a verdict: outcomes, the account of the run, and its exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.expected import Expectation, Expectations
from pytest_cplife.policy import settle
from pytest_cplife.report.results import Plan, Results
from pytest_cplife.rules.model import Level, Outcome, Rule, Verdict, Violation
from tests.plugin.conftest import BROKEN, MESHES, TOTAL, Run

RULE = Rule(
    id="GO-01",
    title="t",
    level="must",
    statement="s",
    why="w",
    cause="c",
    runs=(),
    check=lambda case: (),
    needs=("predict", "ema_weights"),
)


def settled(
    outcome: Outcome,
    reason: str = "",
    *,
    strict: bool = False,
    require: tuple[str, ...] = (),
    level: Level = "should",
    rule: Rule = RULE,
    expectation: Expectation | None = None,
) -> tuple[Outcome, str]:
    violations = (Violation("w", "3", "4"),) if outcome is Outcome.FAILED else ()
    verdict = settle(
        Verdict("GO-01", "dp1", outcome, reason, violations),
        rule,
        strict=strict,
        require=require,
        level=level,
        expectation=expectation,
    )
    return verdict.outcome, verdict.reason


@pytest.mark.parametrize("outcome", list(Outcome))
def test_without_a_wish_the_verdict_stands(outcome: Outcome) -> None:
    assert settled(outcome, "why") == (outcome, "why")


def test_strictness_makes_a_failure_of_what_is_not_covered() -> None:
    outcome, reason = settled(Outcome.NOT_COVERED, "no predict", strict=True)
    assert outcome is Outcome.FAILED
    assert "--cplife-strict" in reason and "no predict" in reason
    assert settled(Outcome.BLOCKED, "by GO-02", strict=True)[0] is Outcome.BLOCKED


def test_a_required_capability_has_to_be_the_one_that_is_absent() -> None:
    absent = {"reason": "no ema_weights"}
    assert settled(Outcome.NOT_COVERED, **absent, require=("predict",))[0] is Outcome.NOT_COVERED
    outcome, reason = settled(Outcome.NOT_COVERED, **absent, require=("ema_weights",))
    assert outcome is Outcome.FAILED
    assert "--cplife-require=ema_weights" in reason


def test_an_expected_failure_is_expected_and_no_more() -> None:
    entry = Expectation("GO-01", "", "see #12")
    assert settled(Outcome.FAILED, expectation=entry) == (Outcome.EXPECTED, "see #12")
    assert settled(Outcome.BLOCKED, "x", expectation=entry) == (Outcome.BLOCKED, "x")
    outcome, reason = settled(Outcome.PASSED, expectation=entry)
    assert outcome is Outcome.FAILED
    assert "passes now" in reason and "name the meshes" in reason


SHOULD = replace(RULE, level="should")


def test_below_the_level_asked_for_a_broken_rule_is_advice() -> None:
    assert settled(Outcome.FAILED, rule=SHOULD, level="should")[0] is Outcome.FAILED
    assert settled(Outcome.FAILED, level="must")[0] is Outcome.FAILED
    outcome, reason = settled(Outcome.FAILED, rule=SHOULD, level="must")
    assert outcome is Outcome.ADVICE and reason == "w: 4; it should be: 3"
    assert settled(Outcome.PASSED, rule=SHOULD, level="must")[0] is Outcome.PASSED
    assert settled(Outcome.BLOCKED, rule=SHOULD, level="must")[0] is Outcome.BLOCKED


def test_advice_hides_neither_a_stale_expectation_nor_a_lost_capability() -> None:
    entry = Expectation("GO-01", "", "see #12")
    wish: dict[str, Any] = {"rule": SHOULD, "level": "must"}
    assert settled(Outcome.FAILED, expectation=entry, **wish)[0] is Outcome.EXPECTED
    assert settled(Outcome.PASSED, expectation=entry, **wish)[0] is Outcome.FAILED
    assert settled(Outcome.NOT_COVERED, "no x", strict=True, **wish)[0] is Outcome.FAILED


def results(*outcomes: Outcome) -> Results:
    keys = [(f"GO-{n:02}", "dp1") for n, _ in enumerate(outcomes)]
    plan = Plan(keys=keys, meshes=["dp1"])
    verdicts = [Verdict(*key, one) for key, one in zip(keys, outcomes, strict=True)]
    return Results(plan, [one for one in verdicts if one.outcome is not Outcome.NOT_RUN])


def problems(*outcomes: Outcome, certify: bool = False) -> str:
    found = results(*outcomes).problems(Expectations(), narrowed=False, certify=certify)
    return "\n".join(found)


def test_every_rule_is_counted_once() -> None:
    counts = results(*Outcome, Outcome.PASSED).counts()
    assert counts == {outcome: 1 + (outcome is Outcome.PASSED) for outcome in Outcome}


def test_a_rerun_replaces_the_verdict() -> None:
    found = results(Outcome.FAILED)
    found.add(Verdict("GO-00", "dp1", Outcome.PASSED))
    assert found.counts()[Outcome.PASSED] == 1 and found.counts()[Outcome.FAILED] == 0


def test_a_verdict_outside_the_plan_is_a_problem() -> None:
    found = results(Outcome.PASSED)
    found.add(Verdict("GO-77", "dp1", Outcome.PASSED))
    (problem,) = found.problems(Expectations(), narrowed=False, certify=False)
    assert "2 verdicts for 1 planned" in problem


def test_a_run_that_decided_nothing_is_a_problem() -> None:
    assert "says nothing" in problems(Outcome.BLOCKED, Outcome.NOT_COVERED)
    assert "says nothing" in problems(Outcome.NOT_COVERED, Outcome.NOT_RUN)
    assert not problems(Outcome.NOT_COVERED, Outcome.PASSED)
    assert not problems(Outcome.NOT_RUN)  # pytest itself says that nothing was selected
    assert not problems(Outcome.EXPECTED)
    assert not problems(Outcome.ADVICE)


def test_blocked_without_a_failure_is_a_problem() -> None:
    assert "1 blocked, though nothing failed" in problems(Outcome.PASSED, Outcome.BLOCKED)
    assert not problems(Outcome.FAILED, Outcome.BLOCKED)
    assert not problems(Outcome.ADVICE, Outcome.BLOCKED)
    # What an expected failure blocks cannot be had before it is mended, and is no news.
    assert not problems(Outcome.EXPECTED, Outcome.BLOCKED)


def test_certifying_takes_passed_and_not_covered_only() -> None:
    assert not problems(Outcome.PASSED, Outcome.NOT_COVERED, certify=True)
    for outcome in (Outcome.NOT_RUN, Outcome.EXPECTED, Outcome.ADVICE, Outcome.BLOCKED):
        assert f"not certified: 1 {outcome.value}" in problems(
            Outcome.PASSED, outcome, certify=True
        )


def test_unused_expectations() -> None:
    found = results(Outcome.FAILED, Outcome.NOT_COVERED, Outcome.NOT_RUN)
    entries = [Expectation(f"GO-{n:02}", "", "r") for n in range(3)]
    elsewhere = Expectation("GO-00", "cp2", "r")
    expectations = Expectations([*entries, elsewhere])
    wide = found.problems(expectations, narrowed=False, certify=False)
    assert [text for text in wide if "GO-01 on every mesh is not covered" in text]
    assert [text for text in wide if "GO-00 on cp2 is not among" in text]
    assert len(wide) == 2
    # With --cplife-mesh an entry for another mesh is none of this run's business.
    narrow = found.problems(expectations, narrowed=True, certify=False)
    assert len(narrow) == 1 and "GO-01" in narrow[0]


def test_a_run_with_a_failure(run: Run) -> None:
    result = run()
    result.assert_outcomes(passed=TOTAL - 4, failed=1, skipped=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "GO-02 weights equal uninterrupted on dp2-cp2",
            "*layers.0.weight*resumed: after step (step 4)*0,1*bitwise equal*other bytes*inf/0",
            "first   step 4, resumed: after step: layers.0.weight on ranks 0,1",
            "cause   Something was not restored.",
            "seen    all parameters, by about the learning rate",
            "  |   the trainer's own line",
            "again   pytest --cplife-adapter=mymod:Adapter -k 'GO-02 and [[]dp2-cp2]'",
            "group * rules * passed * failed * not covered * total",
            f"all * 7 *{TOTAL - 4} * 1 * 3 *{TOTAL}",
            "not covered, 3: the run has no schedulers [[]SCHED-01]",
            f"{TOTAL} of {TOTAL} accounted for on {', '.join(MESHES)}: *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback (most recent*")
    result.stdout.no_fnmatch_line("*plugin/fakes.py*")


def test_the_command_in_the_message_selects_just_the_test(run: Run) -> None:
    lines = run("-k", "GO-02", "--cplife-mesh=dp=2,cp=2", "--cplife-mesh=dp=2").outlines
    # Under CI pytest's summary at the end repeats the message.
    (command,) = {line for line in lines if line.startswith("again ")}
    assert "--cplife-mesh=dp=2,cp=2 --cplife-mesh=dp=2" in command
    _, _, keyword = command.partition(" -k ")
    result = run("--cplife-mesh=dp=2,cp=2", "--cplife-mesh=dp=2", "-k", keyword.strip("'"), "-v")
    result.assert_outcomes(failed=1, deselected=12)
    result.stdout.fnmatch_lines([f"{BROKEN.replace('[', '[[]')} FAILED*"])


def test_strict_and_required(run: Run) -> None:
    result = run("--cplife-strict")
    result.assert_outcomes(passed=TOTAL - 4, failed=4)
    result.stdout.fnmatch_lines(["reason  not covered, which --cplife-strict makes a failure: *"])
    run("--cplife-require=schedulers").assert_outcomes(passed=TOTAL - 4, failed=4)


def test_advice_is_told_and_fails_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "should")
    run().assert_outcomes(passed=TOTAL - 4, failed=1, skipped=3)
    result = run("--cplife-level=must", "--cplife-report=r.json")
    result.assert_outcomes(passed=TOTAL - 4, xfailed=1, skipped=3)
    assert result.ret == pytest.ExitCode.OK
    told = "layers.0.weight: other bytes; it should be: bitwise equal"
    result.stdout.fnmatch_lines([f"advice, 1: {told} [[]GO-02]"])
    report = json.loads(Path("r.json").read_text())
    assert report["denominator"]["advice"] == 1 and report["options"]["level"] == "must"
    certified = run("--cplife-level=must", "--cplife-certify")
    certified.stdout.fnmatch_lines(["problem: not certified: 1 advice"])
    assert certified.ret == pytest.ExitCode.TESTS_FAILED


def test_a_must_is_no_advice(run: Run) -> None:
    run("--cplife-level=must").assert_outcomes(passed=TOTAL - 4, failed=1, skipped=3)


def test_a_mesh_that_is_too_large_is_counted_as_not_run(run: Run) -> None:
    result = run("--cplife-max-world-size=2")
    result.assert_outcomes(passed=11, skipped=8)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["not run, 6: dp2-cp2 needs 4 ranks, --cplife-max-world-size is 2 *", "19 of 19 *"]
    )


def test_an_unusable_adapter_fails_once_and_blocks_the_rest(run: Run) -> None:
    result = run(adapter="mymod:HalfAdapter")
    result.assert_outcomes(failed=1, skipped=TOTAL - 1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*HalfAdapter lacks the method `build_serial_model(self) -> 'nn.Module'`",
            f"blocked, {TOTAL - 1}: blocked by ADAPTER-01 *",
        ]
    )


def test_nothing_but_blocked_is_no_success(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "blocked")
    result = run("-k", "GO-01")
    result.assert_outcomes(skipped=3, deselected=16)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["problem: no rule passed and none failed*"])


def test_a_defect_of_the_suite_is_counted_as_a_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "crash")
    result = run("-k", "SAVE-01")
    result.assert_outcomes(failed=3, deselected=16)
    result.stdout.fnmatch_lines(["*RuntimeError: the suite itself broke", "19 of 19 *: 3 failed*"])


def test_what_was_not_reached_is_told_from_what_was_not_selected(run: Run) -> None:
    result = run("-x", "-k", "not ADAPTER")
    result.stdout.fnmatch_lines(
        ["not run, 1: not selected [[]ADAPTER-01]", "not run, 3: not reached [[]SERIAL-01]"]
    )


def test_collecting_only_makes_no_account(run: Run) -> None:
    result = run("--collect-only")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*accounted for*")
