"""The kill matrix: ``python -m pytest_cplife.selftest [--list | PART OF A NAME ...]``.

For each planted fault every rule that fails, the first of them, and whether the rule that has
to find it does. With ``--list`` nothing is judged; the faults are printed as a page of the
documentation.
"""

from __future__ import annotations

import sys
from collections import Counter

from pytest_cplife.selftest.bench import Bench
from pytest_cplife.selftest.catalogue import FAULTS, UNSEEN
from pytest_cplife.selftest.listing import listing
from pytest_cplife.selftest.planting import Fault

from pytest_cplife.rules.model import Outcome
from pytest_cplife.rules.registry import all_rules
from pytest_cplife.suite import MESHLESS_GROUPS


def outcomes(bench: Bench, fault: Fault) -> dict[str, list[str]]:
    """Ids of the rules that fail, are blocked and crash, in order."""
    found: dict[str, list[str]] = {"failed": [], "blocked": [], "crashed": []}
    with bench.session(fault.adapter_ref, fault.earlier, fault.profile) as judge:
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
    return found


def main(parts: list[str]) -> None:
    if parts == ["--list"]:
        print(listing(), end="")
        return
    tally: Counter[str] = Counter()
    with Bench() as bench:
        for fault in FAULTS + UNSEEN:
            if parts and not any(part in fault.adapter_ref for part in parts):
                continue
            found = outcomes(bench, fault)
            failed = found["failed"]
            if fault.rule not in failed:
                verdict = "missed"
            else:
                verdict = "first" if failed[0] == fault.rule else "found"
            tally[verdict] += 1
            rest = [f"({len(found['blocked'])} blocked)"] if found["blocked"] else []
            rest += [f"CRASHED: {' '.join(found['crashed'])}"] if found["crashed"] else []
            name = f"{fault.name} [{fault.mesh}]"
            print(f"{verdict:6} {fault.rule:10} {name:42} {' '.join(failed + rest)}", flush=True)
    print(dict(tally))


if __name__ == "__main__":
    main(sys.argv[1:])
