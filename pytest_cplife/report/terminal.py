"""The summary at the end of a run: one table whose numbers account for every rule and mesh."""

from __future__ import annotations

from collections import Counter, defaultdict

from pytest_cplife.report.results import Results
from pytest_cplife.rules.model import Outcome, Verdict

_SILENT = (Outcome.PASSED, Outcome.FAILED)


def summary_lines(results: Results) -> list[str]:
    """The table by group and outcome, then each reason why a rule was not judged, once."""
    verdicts = results.verdicts()
    used = [outcome for outcome, count in results.counts().items() if count or outcome in _SILENT]
    return [
        *_table(verdicts, used),
        "",
        *_reasons(verdicts),
        _account(results),
    ]


def _table(verdicts: list[Verdict], used: list[Outcome]) -> list[str]:
    groups: dict[str, Counter[Outcome]] = {}
    rules: dict[str, set[str]] = defaultdict(set)
    for verdict in verdicts:
        group = verdict.rule.partition("-")[0]
        groups.setdefault(group, Counter())[verdict.outcome] += 1
        rules[group].add(verdict.rule)
    heads: list[str | int] = ["group", "rules", *(outcome.value for outcome in used), "total"]
    rows: list[list[str | int]] = [
        [group, len(rules[group]), *(counts[outcome] for outcome in used), counts.total()]
        for group, counts in groups.items()
    ]
    total = sum(groups.values(), Counter[Outcome]())
    rows.append(["all", sum(map(len, rules.values())), *(total[o] for o in used), total.total()])
    widths = [max(len(str(row[n])) for row in [heads, *rows]) for n in range(len(heads))]
    return [
        "  ".join(
            str(cell).ljust(width) if n == 0 else str(cell or "-").rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [heads, *rows]
    ]


def _reasons(verdicts: list[Verdict]) -> list[str]:
    """Each reason for an outcome once, with the rules that it holds for."""
    grouped: dict[tuple[Outcome, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.outcome not in _SILENT:
            grouped[verdict.outcome, verdict.reason].append(verdict)
    lines = []
    for outcome in Outcome:
        for (found, reason), ones in grouped.items():
            if found is outcome:
                rules = _names(list(dict.fromkeys(one.rule for one in ones)))
                lines.append(
                    f"{outcome.value}, {len(ones)}: {reason or 'no reason given'} [{rules}]"
                )
    return [*lines, ""] if lines else []


def _names(rules: list[str], limit: int = 8) -> str:
    more = f" and {len(rules) - limit} more" if len(rules) > limit else ""
    return " ".join(rules[:limit]) + more


def _account(results: Results) -> str:
    counts = results.counts()
    parts = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    meshes = ", ".join(results.plan.meshes)
    total = sum(counts.values())
    return f"{total} of {len(results.plan.keys)} accounted for on {meshes}: {parts}"
