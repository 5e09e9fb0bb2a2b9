"""The kill matrix: for each planted fault every rule that fails on it, judged and printed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from pytest_cplife.selftest.bench import Bench
from pytest_cplife.selftest.planting import Fault

from pytest_cplife.rules.model import GROUPS, Outcome
from pytest_cplife.rules.registry import all_rules, get_rule
from pytest_cplife.suite import MESHLESS_GROUPS

INTRODUCTION = """\
# Kill matrix

Planted faults (`faults.md` says what is wrong in each), each judged by all rules. In the order
of the suite: **bold** is the rule that has to find it; after it, or before, the others that fail
on it as well. A rule that presumes one that has failed is blocked by it and judges nothing; how
many were is in the last column. Faults of one mesh are judged on that mesh, so that rules which
compare meshes fail only where the fault's mesh is `all`.

`python -m pytest_cplife.selftest --lanes 2 --rows docs/kill-matrix.jsonl` judges what that file
does not have yet, some ten faults a minute on two cores; the same with `--page` in place of
`--rows` prints this page.
"""


@dataclass(frozen=True)
class Row:
    """What became of one fault.

    Attributes:
        fault: its adapter, as ``--cplife-adapter`` takes it.
        failed: ids of the rules that fail, in the suite's order.
        blocked: ids of those that a failed one has blocked.
        crashed: ids of those that the suite itself could not judge.
    """

    fault: str
    failed: tuple[str, ...]
    blocked: tuple[str, ...]
    crashed: tuple[str, ...]

    def verdict(self, rule: str) -> str:
        """How `rule`, which has to find the fault, has done: "first", "found" or "missed"."""
        if rule not in self.failed:
            return "missed"
        return "first" if self.failed[0] == rule else "found"


def rows(faults: Sequence[Fault], lanes: int = 1, kept: Path | None = None) -> Iterator[Row]:
    """The rows of `faults`, in their order, as they come.

    Args:
        lanes: processes that judge, each with ranks of its own.
        kept: a file of rows; those it has are not judged again, and new ones are added to it, so
            that what was interrupted goes on where it was.
    """
    done = {row.fault: row for row in read_rows(kept)} if kept is not None else {}
    left = [fault for fault in faults if fault.adapter_ref not in done]
    with ProcessPoolExecutor(lanes, get_context("spawn"), _open_bench) as pool:
        judged = pool.map(_judge, left)
        for fault in faults:
            row = done.get(fault.adapter_ref)
            if row is None:
                row = next(judged)
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
            yield row


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [Row(**{k: v if k == "fault" else tuple(v) for k, v in each.items()}) for each in found]


_bench: Bench | None = None
"""Of a process that judges. Its ranks end with it."""


def _open_bench() -> None:
    global _bench
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _bench = Bench()


def _end_with(parent: int) -> None:
    """A pool's process waits for work for ever if its parent was killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _judge(fault: Fault) -> Row:
    assert _bench is not None
    found: dict[str, list[str]] = {"failed": [], "blocked": [], "crashed": []}
    with _bench.session(fault.adapter_ref, fault.earlier, fault.profile) as judge:
        for rule in all_rules():
            if fault.spec is None and rule.group not in MESHLESS_GROUPS:
                continue
            try:
                outcome = judge.judge(rule, fault.spec).outcome
            except Exception:
                found["crashed"].append(rule.id)  # the suite's own fault, told beside the others
                continue
            if outcome in (Outcome.FAILED, Outcome.BLOCKED):
                found[outcome.value].append(rule.id)
    return Row(fault.adapter_ref, *(tuple(ids) for ids in found.values()))


def page(faults: Iterable[Fault], judged: Iterable[Row]) -> str:
    """The matrix as a page of the documentation, ending in a newline."""
    by_fault = {row.fault: row for row in judged}
    faults = list(faults)
    pairs = [(f, by_fault[f.adapter_ref]) for f in faults if f.adapter_ref in by_fault]
    tally = _tally(pairs, len(faults))
    return "\n".join([INTRODUCTION, *tally, *_by_group(pairs), *_by_rule(pairs)]) + "\n"


def _tally(pairs: Sequence[tuple[Fault, Row]], planted: int) -> Iterator[str]:
    verdicts = Counter(row.verdict(fault.rule) for fault, row in pairs if fault.rule)
    unseen = [row for fault, row in pairs if not fault.rule]
    yield (
        f"{len(pairs)} of {planted} faults were judged: the rule that has to find it is the first"
        f" to fail for {verdicts['first']}, fails after another for {verdicts['found']}, and misses"
        f" {verdicts['missed']}. {len(unseen)} are planted without such a rule, and"
        f" {sum(not row.failed for row in unseen)} of them are seen by none."
    )


def _by_group(pairs: Sequence[tuple[Fault, Row]]) -> Iterator[str]:
    for group, about in [*GROUPS.items(), ("", "no rule has to find it")]:
        mine = [(f, row) for f, row in pairs if f.rule.partition("-")[0] == group]
        if not mine:
            continue
        yield f"\n## {group or 'Unseen'}: {about}\n"
        yield "| fault | mesh | rules that fail | blocked |"
        yield "|---|---|---|---|"
        for fault, row in sorted(mine, key=lambda pair: pair[0].rule):
            ids = [f"**{rule}**" if rule == fault.rule else rule for rule in row.failed]
            ids += [f"{rule} (crashed)" for rule in row.crashed]
            mesh = f"`{fault.mesh}`" if fault.mesh else "all"
            yield f"| {fault.name} | {mesh} | {' '.join(ids) or '-'} | {len(row.blocked) or ''} |"


def _by_rule(pairs: Sequence[tuple[Fault, Row]]) -> Iterator[str]:
    fails = Counter(rule for _, row in pairs for rule in row.failed)
    leads = Counter(row.failed[0] for _, row in pairs if row.failed)
    yield "\n## By rule\n"
    yield "| rule | faults that it fails on | of these the first to fail |"
    yield "|---|---|---|"
    for rule in all_rules():
        yield f"| {rule.id} {get_rule(rule.id).title} | {fails[rule.id]} | {leads[rule.id]} |"
