"""What the README says about the code is what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pytest_cplife.adapter import LifecycleAdapter, TrainingRun
from pytest_cplife.expected import read_expected
from pytest_cplife.launchers import LAUNCHERS
from pytest_cplife.options import BACKENDS, DEVICES, OPTIONS, REPORT_SUFFIXES
from pytest_cplife.report.document import build_document
from pytest_cplife.report.results import Plan, Results
from pytest_cplife.rules.model import Outcome, Rule

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under `heading`, without its head."""
    section = README.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head = next(n for n, line in enumerate(lines) if line.startswith("|---"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[head + 1 :]]


def test_it_opens_with_the_two_commands() -> None:
    assert README.split()[2:4] == ["make", "demo"]
    assert README.index("make test") < README.index("pip install")


def test_the_table_of_options_is_complete() -> None:
    listed = [row[0].strip("`") for row in rows("Options")]
    query = {"rules": "[ID]"}
    assert listed == [
        f"{option.flag} {query.get(option.name, option.metavar)}".strip() for option in OPTIONS
    ]
    meaning = {row[0].strip("`").partition(" ")[0]: row[1] for row in rows("Options")}
    for flag, accepted in (
        ("--cplife-report", REPORT_SUFFIXES),
        ("--cplife-launcher", LAUNCHERS),
        ("--cplife-device", DEVICES),
        ("--cplife-backend", BACKENDS),
    ):
        assert all(f"`{value}`" in meaning[flag] for value in accepted)


def test_the_table_of_outcomes_is_complete() -> None:
    assert [row[0] for row in rows("What comes out")] == [outcome.value for outcome in Outcome]


def test_the_required_methods_are_those_of_the_protocol() -> None:
    listed = {re.sub(r"\W.*", "", row[1].strip("`")) for row in rows("Writing an adapter")}
    required = LifecycleAdapter.__abstractmethods__ | TrainingRun.__abstractmethods__
    assert listed == required
    assert "Five methods are required" in README and len(required) == 5
    assert inspect.isabstract(TrainingRun)


def test_the_keys_of_a_report_are_told() -> None:
    rule = Rule("GO-02", "t", "must", "s", "w", "c", (), check=lambda case: ())
    results = Results(Plan(keys=[("GO-02", "dp1")], meshes=["dp1"]))
    document = build_document(results, [rule], options={}, problems=[])
    told = README.partition("### Reports\n")[2].partition("\n### ")[0]
    keys = {*document, *document["results"][0]}
    assert not [key for key in keys if f"`{key}`" not in told]


def test_the_sample_of_expected_failures_can_be_read(tmp_path: Path) -> None:
    sample = README.partition("### Expected failures\n")[2].partition("The file")[0]
    path = tmp_path / "sample.toml"
    path.write_text("\n".join(line.strip() for line in sample.splitlines()))
    (entry,) = read_expected(path).entries
    assert (entry.rule, entry.mesh) == ("GO-02", "dp2-cp2")


def test_the_tested_versions_are_the_pinned_ones() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    tested = {row[0]: row[1] for row in rows("Tested with")}
    assert tested["torch"].startswith(f"{pins['torch']},")
    assert tested["pytest"] == pins["pytest"]


def test_the_pins_cover_what_the_package_asks_for() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[]", text)[0] for text in asked}
    pinned = (ROOT / "constraints.txt").read_text()
    assert not [name for name in names if f"\n{name}==" not in pinned]
