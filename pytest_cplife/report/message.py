"""The message of a failed rule: one screen that says what broke, where, and how to see it again."""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence

from pytest_cplife.rules.model import Rule, Verdict, Violation

WIDTH = 100
_MAX_ROWS = 8
_MAX_BLOCKS = 4
_MAX_CELL = 34
_MAX_SUBJECT = 44
_MIN_CELL = 8
_SHORTENED = ("expected", "observed", "moment", "ranks")
"""Columns that give way where a table is too wide, first ones first; a subject never does."""
_ENDED = re.compile(r"rank \d+ (raised|exited|killed): ")
_MAX_NOTES = 4
_MAX_DETAIL_LINES = 18


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
    # Where a rank says itself what ended it, a guess at what usually does only misleads.
    told = verdict.violations and all(_ENDED.match(one.observed) for one in verdict.violations)
    if not told and (verdict.violations or not verdict.reason):
        parts.append(_wrapped("cause", rule.cause))
    parts += [_wrapped("seen", note) for note in list(notes)[:_MAX_NOTES]]
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
    """What was not measured (structure) first, then what had no budget, then by excess over it."""
    return sorted(violations, key=_severity, reverse=True)


def _severity(one: Violation) -> tuple[int, float]:
    if one.difference is None or math.isnan(one.difference):
        return 2, 0.0
    if not one.budget:
        return 1, one.difference
    return 0, one.difference / one.budget


def _worst(violations: Sequence[Violation]) -> list[str]:
    """The worst in a table; those whose text is too long for a cell are written out below it."""
    ordered = worst_first(violations)
    short = [
        one
        for one in ordered
        if max(len(one.expected), len(one.observed)) <= _MAX_CELL
        and len(one.subject) <= _MAX_SUBJECT
    ]
    columns = ("subject", "moment", "ranks", "expected", "observed", "diff/budget")
    rows = [
        (
            one.subject,
            _moment(one),
            _ranks(one.ranks),
            one.expected,
            one.observed,
            _difference(one),
        )
        for one in short[:_MAX_ROWS]
    ]
    lines = format_table(columns, rows) if rows else []
    # What is wrong with one subject in one respect is one block, however much it is.
    blocks: dict[tuple[str, str], list[str]] = {}
    for one in ordered:
        if one not in short:
            about = (_moment(one), _ranks(one.ranks, "on "), _difference(one))
            told = ", ".join(text for text in about if text)
            head = f"{one.subject} ({told})" if told else one.subject
            blocks.setdefault((head, one.expected), []).append(one.observed)
    for head, expected in list(blocks)[:_MAX_BLOCKS]:
        lines.append(textwrap.fill(head, WIDTH, initial_indent="  ", subsequent_indent="    "))
        lines.append(_wrapped("wanted", expected, indent=4))
        lines += [_wrapped("found", text, indent=4) for text in blocks[head, expected]]
    more = max(len(short) - _MAX_ROWS, 0) + sum(map(len, list(blocks.values())[_MAX_BLOCKS:]))
    return [*lines, f"  +{more} more"] if more else lines


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under their columns, within `WIDTH`; a column without any content is left out."""
    used = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    lines = [
        [columns[n] for n in used],
        *([" ".join(row[n].split()) for n in used] for row in rows),
    ]
    widths = _narrowed([max(map(len, column)) for column in zip(*lines, strict=True)], lines[0])
    return [
        "".join(
            f"  {_cut(text, width):<{width}}" for text, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _narrowed(widths: list[int], names: Sequence[str]) -> list[int]:
    """The widths of a table that fits: the columns that tell rows apart give way last."""
    for name in _SHORTENED:
        if name in names:
            place, excess = names.index(name), sum(widths) + 2 * len(widths) - WIDTH
            floor = min(widths[place], max(_MIN_CELL, len(name)))
            widths[place] = max(floor, widths[place] - max(excess, 0))
    while sum(widths) + 2 * len(widths) > WIDTH:
        widths[widths.index(max(widths))] -= 1
    return widths


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
