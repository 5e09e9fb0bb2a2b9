"""The kill matrix: what is kept is not judged again, and a page says what its rows say."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pytest_cplife.selftest.catalogue import FAULTS, UNSEEN
from pytest_cplife.selftest.matrix import Row, page, read_rows, rows

DOCS = Path(__file__).parents[1] / "docs"


def invented(position: int) -> Row:
    """A row that no judging would give."""
    fault = FAULTS[position]
    return Row(fault.adapter_ref, ("ZZZ-01", fault.rule), (f"B-{position}",), ())


def test_rows_that_are_kept_are_not_judged_again(tmp_path: Path) -> None:
    kept = tmp_path / "rows"
    made = [invented(position) for position in (2, 0, 1)]
    kept.write_text("".join(json.dumps(asdict(row)) + "\n" for row in made))
    assert read_rows(kept) == made
    assert list(rows(FAULTS[:3], kept=kept)) == [invented(0), invented(1), invented(2)]


def test_verdicts() -> None:
    row = Row("x:Y", ("A-01", "B-02"), (), ())
    assert [row.verdict(rule) for rule in ("A-01", "B-02", "C-03")] == ["first", "found", "missed"]


def test_a_page_tells_the_rule_that_has_to_find_from_the_others() -> None:
    fault = FAULTS[0]
    row = Row(fault.adapter_ref, ("GO-01", fault.rule), ("GO-02",), ("GO-03",))
    text = page([fault, FAULTS[1]], [row])
    line = f"| {fault.name} | `{fault.mesh}` | GO-01 **{fault.rule}** GO-03 (crashed) | 1 |"
    assert line in text.splitlines()
    assert FAULTS[1].name not in text  # it was not judged
    assert (
        "1 of 2 faults were judged: the rule that has to find it is the first to fail for 0,"
        in text
    )


def test_the_page_is_up_to_date() -> None:
    """If not: ``python -m pytest_cplife.selftest --page docs/kill-matrix.jsonl``."""
    judged = read_rows(DOCS / "kill-matrix.jsonl")
    assert (DOCS / "kill-matrix.md").read_text(encoding="utf-8") == page(FAULTS + UNSEEN, judged)
    rule_of = {fault.adapter_ref: fault.rule for fault in FAULTS}
    assert judged
    for row in judged:
        assert row.fault in rule_of, f"{row.fault} is not planted any more"
        assert row.verdict(rule_of[row.fault]) != "missed"
        assert not row.crashed
