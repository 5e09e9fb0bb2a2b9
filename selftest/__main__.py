"""What the planted faults break: ``python -m pytest_cplife.selftest [PART OF A NAME ...]``.

For each fault every rule that fails, the first of them, and whether the rule that has to find it
does.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from pytest_cplife.selftest.catalogue import FAULTS, UNSEEN
from pytest_cplife.selftest.listing import listing
from pytest_cplife.selftest.matrix import page, read_rows, rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pytest_cplife.selftest", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of faults; default: all")
    parser.add_argument("--list", action="store_true", help="print docs/faults.md; judge nothing")
    parser.add_argument("--lanes", type=int, default=1, help="processes that judge; default: 1")
    parser.add_argument("--rows", type=Path, help="keep results in this file, and go on from it")
    parser.add_argument("--page", type=Path, help="print such a file as a page; judge nothing")
    given = parser.parse_args()
    if given.list:
        print(listing(), end="")
        return
    if given.page:
        print(page(FAULTS + UNSEEN, read_rows(given.page)), end="")
        return
    faults = [
        fault
        for fault in FAULTS + UNSEEN
        if not given.names or any(part in fault.adapter_ref for part in given.names)
    ]
    if not faults:
        parser.error(f"no fault has any of {given.names} in its name; docs/faults.md lists them")
    tally: Counter[str] = Counter()
    for fault, row in zip(faults, rows(faults, given.lanes, given.rows), strict=True):
        verdict = row.verdict(fault.rule)
        tally[verdict] += 1
        rest = [f"({len(row.blocked)} blocked)"] if row.blocked else []
        rest += [f"CRASHED: {' '.join(row.crashed)}"] if row.crashed else []
        name = f"{fault.name} [{fault.mesh}]"
        line = f"{verdict:6} {fault.rule:10} {name:42} {' '.join([*row.failed, *rest])}"
        print(line, flush=True)
    print(dict(tally))


if __name__ == "__main__":
    main()
