"""The machine-readable report, and the Markdown that derives from it.

The document holds the same with and without xdist: it is made from the plan and the
verdicts, in the plan's order, by the process that the user started.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_cplife.report.results import Results
from pytest_cplife.rules.model import Outcome, Rule

SCHEMA = "pytest-cplife/report"
SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or goes away; a new key alone does not raise it."""


def build_document(
    results: Results,
    rules: Iterable[Rule],
    *,
    options: Mapping[str, Any],
    problems: Iterable[str],
) -> dict[str, Any]:
    """The report as plain data; every value can be written as strict JSON."""
    by_id = {rule.id: rule for rule in rules}
    counts = results.counts()
    document = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "adapter": results.plan.adapter,
        "environment": results.plan.environment,
        "options": dict(options),
        "meshes": results.plan.meshes,
        "denominator": {
            "total": len(results.plan.keys),
            **{outcome.name.lower(): count for outcome, count in counts.items()},
        },
        "problems": list(problems),
        "results": [
            {**_rule_data(by_id.get(verdict.rule)), **verdict.to_json()}
            for verdict in results.verdicts()
        ],
    }
    plain: dict[str, Any] = _strict(document)
    return plain


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write `document` to `path`, in the format that its suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (
        json.dumps(document, indent=1, allow_nan=False) + "\n"
        if path.suffix == ".json"
        else markdown(document)
    )
    path.write_text(text, encoding="utf-8")


def markdown(document: Mapping[str, Any]) -> str:
    """A table of rules over meshes, and what was not passed with its reason."""
    meshes = document["meshes"]
    outcomes: dict[str, dict[str, str]] = {}
    titles = {}
    for one in document["results"]:
        outcomes.setdefault(one["rule"], {})[one["mesh"]] = one["outcome"]
        titles[one["rule"]] = one["title"]
    counts = document["denominator"]
    lines = [
        f"# Lifecycle conformance of `{document['adapter'].get('reference', '')}`",
        "",
        ", ".join(
            f"{counts[outcome.name.lower()]} {outcome.value}"
            for outcome in Outcome
            if counts[outcome.name.lower()]
        )
        + f" of {counts['total']}",
        "",
        "| rule | | " + " | ".join(meshes) + " |",
        "|---" * (len(meshes) + 2) + "|",
    ]
    for rule, by_mesh in outcomes.items():
        # A rule that is judged once stands in every column.
        cells = [by_mesh.get(mesh, by_mesh.get("", "")) for mesh in meshes]
        lines.append(f"| {rule} | {titles[rule]} | " + " | ".join(cells) + " |")
    reasons = [
        f"- {one['rule']} {one['mesh']}: {one['outcome']}: {one['reason']}"
        for one in document["results"]
        if one["reason"]
    ]
    broken = [
        f"- {one['rule']} {one['mesh']}: `{item['subject']}`: expected {item['expected']}, "
        f"observed {item['observed']}"
        for one in document["results"]
        for item in one["violations"][:3]
    ]
    for title, part in (
        ("Broken", broken),
        ("Reasons", reasons),
        ("Problems", [f"- {text}" for text in document["problems"]]),
        ("Environment", [f"- {key}: {text}" for key, text in document["environment"].items()]),
    ):
        if part:
            lines += ["", f"## {title}", "", *part]
    return "\n".join(lines) + "\n"


def _rule_data(rule: Rule | None) -> dict[str, str]:
    if rule is None:
        return {"group": "", "title": "", "level": ""}
    return {"group": rule.group, "title": rule.title, "level": rule.level}


def _strict(value: Any) -> Any:
    """JSON has no infinities and no NaN; they become the strings that Python calls them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
