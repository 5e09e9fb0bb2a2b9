"""Reports: the same with and without workers, strict JSON, and text that fits the screen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_cplife.report.document import SCHEMA, SCHEMA_VERSION, build_document, markdown
from pytest_cplife.report.message import (
    WIDTH,
    failure_message,
    first_divergence,
    format_table,
    worst_first,
)
from pytest_cplife.report.results import Plan, Results
from pytest_cplife.report.terminal import summary_lines
from pytest_cplife.rules.model import Measurement, Outcome, Rule, Verdict, Violation
from tests.plugin.conftest import MESHES, TOTAL, Run

RULE = Rule(
    id="GO-02",
    title="weights equal",
    level="must",
    statement="They are equal.",
    why="They are not the same run.",
    cause="The moments.",
    runs=(),
    check=lambda case: (),
)


def load(path: Any) -> dict[str, Any]:
    """The document without what differs between two runs of the same."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    document: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    for one in document["results"]:
        assert one.pop("seconds") >= 0
    return document


def test_the_report_is_the_same_with_workers(run: Run, pytester: pytest.Pytester) -> None:
    run("--cplife-report=alone.json")
    run("--cplife-report=two.json", "-n2")
    alone, two = load(pytester.path / "alone.json"), load(pytester.path / "two.json")
    assert alone == two
    assert (alone["schema"], alone["version"]) == (SCHEMA, SCHEMA_VERSION)
    assert alone["meshes"] == list(MESHES)
    assert alone["adapter"]["class"] == "mymod.Adapter"
    assert alone["environment"]["torch"] == "0.0"
    assert alone["problems"] == []
    assert alone["denominator"] == {
        "total": TOTAL,
        "passed": TOTAL - 4,
        "failed": 1,
        "expected": 0,
        "advice": 0,
        "not_covered": 3,
        "blocked": 0,
        "not_run": 0,
    }
    assert len(alone["results"]) == TOTAL
    (broken,) = [one for one in alone["results"] if one["outcome"] == "failed"]
    assert (broken["rule"], broken["group"], broken["mesh"]) == ("GO-02", "GO", "dp2-cp2")
    assert broken["violations"][0]["difference"] == "inf"
    passed = next(one for one in alone["results"] if one["rule"] == "GRAD-01")
    assert passed["measurements"] == [
        {"what": "layers.0.weight", "difference": 0.0, "budget": 1e-06}
    ]


def test_selection_is_told_alike_with_workers(run: Run, pytester: pytest.Pytester) -> None:
    run("--cplife-report=alone.json", "-k", "GO-01 or dp1")
    run("--cplife-report=two.json", "-n2", "-k", "GO-01 or dp1")
    alone = load(pytester.path / "alone.json")
    assert alone == load(pytester.path / "two.json")
    assert alone["denominator"]["not_run"] == 11


def test_several_reports_and_a_new_folder(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--cplife-report=new/r.json", "--cplife-report=r.md", "-k", "GO-02")
    result.stdout.fnmatch_lines(["report: *r.json", "report: *r.md"])
    assert load(pytester.path / "new" / "r.json")["denominator"]["failed"] == 1
    text = (pytester.path / "r.md").read_text()
    assert "| GO-02 | weights equal uninterrupted | passed | passed | failed |" in text
    assert "`layers.0.weight`: expected bitwise equal, observed other bytes" in text


def test_a_report_that_cannot_be_written_fails_the_run(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "healthy")
    (pytester.path / "file").write_text("")
    result = run("--cplife-report=file/r.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["problem: cannot write *r.json: *"])


def test_a_verdict_survives_the_way_between_processes() -> None:
    violation = Violation("w", "a", "b", "m", (0, 3), 4, float("nan"), 0.5, "n", "d")
    verdict = Verdict(
        "GO-02", "dp1", Outcome.FAILED, "r", (violation,), (Measurement("w", 1.0, 2.0),), 3.0
    )
    again = Verdict.from_json(json.loads(json.dumps(verdict.to_json())))
    assert repr(again) == repr(verdict)


def test_a_document_has_no_number_that_json_lacks() -> None:
    verdict = Verdict(
        "GO-02", "dp1", Outcome.PASSED, measurements=(Measurement("w", float("nan"), 0.0),)
    )
    plan = Plan(keys=[("GO-02", "dp1")], meshes=["dp1"])
    document = build_document(Results(plan, [verdict]), [RULE], options={}, problems=["p"])
    assert document["results"][0]["measurements"][0]["difference"] == "nan"
    json.dumps(document, allow_nan=False)
    assert "- p" in markdown(document)


def broken(*violations: Violation, reason: str = "", level: str = "must") -> list[str]:
    rule = Rule(**{**{f: getattr(RULE, f) for f in RULE.__slots__}, "level": level})
    verdict = Verdict("GO-02", "dp2", Outcome.FAILED, reason, violations)
    return failure_message(rule, verdict, ["pytest", "-k", "GO-02 and [dp2]"]).splitlines()


def test_a_message_fits_on_one_screen() -> None:
    violations = [
        Violation(
            subject=f"encoder.blocks.{n}.attention.projection.weight._extra.long.name",
            moment="resumed: after the first step that follows",
            expected="DTensor(mesh=dp2-cp2, Shard(0), Replicate())",
            observed="DTensor(mesh=dp2-cp2, Replicate(), Replicate()) " * 3,
            ranks=(0, 1, 2, 3),
            step=n,
            difference=float(n),
            budget=1.0,
            note=f"note {n}",
            detail=f"detail {n}\n" * 60,
        )
        for n in range(1, 60)
    ]
    lines = broken(*violations)
    assert len(lines) <= 60
    assert all(len(line) <= WIDTH for line in lines)
    assert "  +55 more" in lines
    assert sum(line.startswith("seen ") for line in lines) == 4
    assert "+58 other details in the report" in lines
    assert lines[-1] == "again   pytest -k 'GO-02 and [dp2]'"


def test_all_that_is_wrong_with_one_subject_is_told() -> None:
    lines = broken(*(Violation("adapter", "a class", f"problem {n} " * 5) for n in range(20)))
    assert sum(line.startswith("    found   problem") for line in lines) == 20
    assert sum("wanted" in line for line in lines) == 1


def test_a_table_fits_the_width_and_drops_empty_columns() -> None:
    rows = [("a" * 90, "", "b" * 90), ("c", "", "d")]
    head, first, second = format_table(("one", "two", "three"), rows)
    assert head.split() == ["one", "three"]
    assert len(first) <= WIDTH and "..." in first
    assert second.split() == ["c", "d"]


def test_rows_can_be_told_apart_in_a_narrow_table() -> None:
    names = [f"blocks.{n}.attention.up.weight[{e}]" for n in (0, 1) for e in ("exp_avg", "step")]
    told = ("equal bit for bit", "120 of 120 elements differ")
    moment = "after a file with a weight of another size"
    lines = broken(*(Violation(name, *told, moment, (0, 1), None, 0.03, 0.0) for name in names))
    assert all(len(line) <= WIDTH for line in lines)
    for name in names:
        assert any(line.startswith(f"  {name}  ") for line in lines)
    long = "a" * 60
    assert any(line.startswith(f"  {long} (") for line in broken(Violation(long, *told, moment)))


def test_what_ended_a_rank_needs_no_guess() -> None:
    wanted = "completes on every rank"
    for kind, guessed in (("raised", False), ("exited", False), ("hung", True)):
        lines = broken(Violation("load", wanted, f"rank 1 {kind}: KeyError: 'optim'"))
        assert any(line.startswith("cause ") for line in lines) is guessed


def test_worst_first() -> None:
    def one(subject: str, difference: float | None, budget: float | None) -> Violation:
        return Violation(subject, "e", "o", difference=difference, budget=budget)

    ordered = worst_first(
        [
            one("slight", 2.0, 1.0),
            one("far", 9.0, 1.0),
            one("structure", None, None),
            one("bitwise", 0.5, 0.0),
        ]
    )
    assert [v.subject for v in ordered] == ["structure", "bitwise", "far", "slight"]


def test_the_first_divergence_is_the_earliest() -> None:
    late = Violation("a", "e", "o", step=5)
    early = Violation("b", "e", "o", "resumed", (1,), step=4)
    assert first_divergence([late, early]) == "step 4, resumed: b on rank 1"
    assert first_divergence([Violation("a", "e", "o")]) is None


def test_a_reason_alone_needs_no_cause() -> None:
    lines = broken(reason="passes now")
    assert "reason  passes now" in lines
    assert not [line for line in lines if line.startswith("cause")]


def test_should_is_said() -> None:
    assert "should" in broken(Violation("a", "e", "o"), level="should")[0]
    assert "should" not in broken(Violation("a", "e", "o"))[0]


def test_the_summary_adds_up_and_says_reasons_once() -> None:
    plan = Plan(
        keys=[(r, m) for r in ("GO-01", "GO-02") for m in ("a1", "b2")], meshes=["a1", "b2"]
    )
    verdicts = [
        Verdict("GO-01", "a1", Outcome.PASSED),
        Verdict("GO-01", "b2", Outcome.BLOCKED, "blocked by SAVE-01"),
        Verdict("GO-02", "b2", Outcome.BLOCKED, "blocked by SAVE-01"),
    ]
    lines = summary_lines(Results(plan, verdicts))
    assert lines[0].split() == [
        "group",
        "rules",
        "passed",
        "failed",
        "blocked",
        "not",
        "run",
        "total",
    ]
    assert lines[1].split() == ["GO", "2", "1", "-", "2", "1", "4"]
    assert lines[2].split() == ["all", "2", "1", "-", "2", "1", "4"]
    assert "blocked, 2: blocked by SAVE-01 [GO-01 GO-02]" in lines
    assert "not run, 1: not selected [GO-02]" in lines
    assert lines[-1] == "4 of 4 accounted for on a1, b2: 1 passed, 2 blocked, 1 not run"
