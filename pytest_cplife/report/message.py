"""The message of a failed rule: one screen that says what broke, where, and how to see it again."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterable, Sequence

from pytest_cplife.rules.model import Rule, Verdict, Violation

WIDTH = 100
_MAX_ROWS = 8
_MAX_CELL = 34
_MAX_DETAIL_LINES = 25


def failure_message(rule: Rule, verdict: Verdict, command: Sequence[str]) -> str:
    """What a user reads when `rule` failed."""
    where = f" on {verdict.mesh}" if verdict.mesh else ""
    should = " (should: a sound trainer may decide otherwise)" if rule.level == "should" else ""
    parts = [
        f"{rule.id} {rule.title}{where}{should}",
        _wrapped("rule", rule.statement),
        _wrapped("costs", rule.why),
    ]
    if verdict.reason:
        parts.append(_wrapped("reason", verdict.reason))
    if verdict.violations:
        parts += ["", *_worst(verdict.violations), ""]
        first = first_divergence(verdict.violations)
        if first is not None:
            parts.append(_wrapped("first", first))
    notes = dict.fromkeys(one.note for one in verdict.violations if one.note)
    if verdict.violations or not verdict.reason:
        parts.append(_wrapped("cause", rule.cause))
    parts += [_wrapped("seen", note) for note in list(notes)[:4]]
    parts += _details(verdict.violations)
    parts.append(f"again   {shlex.join(command)}")
    return "\n".join(parts)


def first_divergence(violations: Sequence[Violation]) -> str | None:
    """The earliest step and subject, where the violations are a matter of steps."""
    stepped = [one for one in violations if one.step is not None]
    if not stepped:
        return None
    first = min(stepped, key=lambda one: one.step if one.step is not None else 0)
    moment = f", {first.moment}" if first.moment else ""
    return f"step {first.step}{moment}: {first.subject}{_ranks(first.ranks, ' on ')}"


def worst_first(violations: Iterable[Violation]) -> list[Violation]:
    """By how far the difference is over its budget; what was not measured (structure) leads."""
    return sorted(violations, key=_severity, reverse=True)


def _severity(one: Violation) -> float:
    if one.difference is None or math.isnan(one.difference):
        return math.inf
    if not one.budget:
        return one.difference if one.difference else 0.0
    return one.difference / one.budget


def _worst(violations: Sequence[Violation]) -> list[str]:
    """The worst in a table; those whose text is too long for a cell are written out below it."""
    ordered = worst_first(violations)
    shown = ordered[:_MAX_ROWS]
    long = [one for one in shown if max(len(one.expected), len(one.observed)) > _MAX_CELL]
    columns = ("subject", "moment", "ranks", "expected", "observed", "difference/budget")
    rows = [
        (
            one.subject,
            _moment(one),
            _ranks(one.ranks),
            one.expected,
            one.observed,
            _difference(one),
        )
        for one in shown
        if one not in long
    ]
    lines = format_table(columns, rows) if rows else []
    for one in long:
        about = [
            text for text in (_moment(one), _ranks(one.ranks, "on "), _difference(one)) if text
        ]
        lines.append(f"  {one.subject}" + (f" ({', '.join(about)})" if about else ""))
        lines += [
            _wrapped(label, text, indent=4)
            for label, text in (("wanted", one.expected), ("found", one.observed))
        ]
    if len(ordered) > len(shown):
        lines.append(f"  +{len(ordered) - len(shown)} more")
    return lines


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under their columns, within `WIDTH`; a column without any content is left out."""
    used = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    lines = [
        [columns[n] for n in used],
        *([" ".join(row[n].split()) for n in used] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    while sum(widths) + 2 * len(widths) > WIDTH:
        widths[widths.index(max(widths))] -= 1
    return [
        "".join(
            f"  {_cut(text, width):<{width}}" for text, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _cut(text: str, width: int) -> str:
    """The end of a name tells it from its neighbours as well as its beginning does."""
    if len(text) <= width:
        return text
    tail = (width - 3) // 2
    return f"{text[: width - 3 - tail]}...{text[len(text) - tail :]}"


def _moment(one: Violation) -> str:
    step = "" if one.step is None else f"step {one.step}"
    return f"{one.moment} ({step})" if one.moment and step else one.moment or step


def _difference(one: Violation) -> str:
    if one.difference is None:
        return ""
    budget = "" if one.budget is None else f"/{one.budget:.3g}"
    return f"{one.difference:.3g}{budget}"


def _ranks(ranks: Sequence[int], lead: str = "") -> str:
    if not ranks:
        return ""
    word = f"{lead}rank{'s' * (len(ranks) > 1)} " if lead else ""
    return f"{word}{','.join(map(str, ranks))}"


def _details(violations: Sequence[Violation]) -> list[str]:
    """The longer text, such as a traceback, once; its end says most."""
    texts = list(dict.fromkeys(one.detail.rstrip() for one in violations if one.detail.strip()))
    if not texts:
        return []
    lines = texts[0].splitlines()
    cut = len(lines) - _MAX_DETAIL_LINES
    if cut > 0:
        lines = [f"... {cut} lines before", *lines[cut:]]
    more = [f"+{len(texts) - 1} other details in the report"] if len(texts) > 1 else []
    return ["", *(f"  | {line}" for line in lines), *more, ""]


def _wrapped(label: str, text: str, indent: int = 0) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * indent + f"{label:<8}",
        subsequent_indent=" " * (indent + 8),
        break_long_words=False,
        break_on_hyphens=False,
    )
