"""Fuzz torch's own moves of one tensor, for as long as is asked, and print what is not right.

    python scripts/fuzz_torch.py --seconds 3600

Gathering, cutting, laying out anew, and DCP from one layout to another, on meshes of 2, 3 and 4
ranks, in turns, with other examples every time. What ``docs/torch-findings.md`` already tells is
left out by `known`, so that the next finding can be met. Each finding is printed as JSON that
:class:`pytest_cplife.fuzz.moves.MoveSuite` reads.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_cplife.fuzz.moves import OPERATIONS, Move, MoveSuite
from pytest_cplife.fuzz.profiles import explore
from pytest_cplife.fuzz.search import search
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensors import DTYPES, REDUCE_OPS, parse_placement
from pytest_cplife.launchers import make_launcher
from pytest_cplife.mesh import parse_meshes
from pytest_cplife.rules.model import Violation

MESHES = ("dp=2", "dp=3", "dp=2,tp=2", "dp=4")
ROUND = 30.0
"""Seconds for which one operation has its turn."""

MOVED_BY_GLOO = tuple(d for d in DTYPES if d != "int16" and not d.startswith("float8"))


def known(move: Move) -> bool:
    """Whether the documented findings cover it: strided shards that do not divide cannot be cut."""
    if move.operation != "distribute_tensor":
        return False
    records = [parse_placement(text) for text in move.target]
    for dim in {record.dim for record in records if record.kind == "strided"}:
        sizes = zip(records, move.mesh.shape, strict=True)
        pieces = math.prod(n for r, n in sizes if r.kind in ("shard", "strided") and r.dim == dim)
        if move.tensor.shape[dim] % pieces:
            return True
    return False


class Rest(MoveSuite):
    """What is not known yet."""

    def check(self, example: Move) -> Sequence[Violation] | None:
        return None if known(example) else super().check(example)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--mesh", action="append", help="a mesh; repeatable")
    options = parser.parse_args()
    meshes = parse_meshes(options.mesh or MESHES)
    launcher = make_launcher("processes", device="cpu", timeout=60)
    tried: Counter[str] = Counter()
    end, turn = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        operation = OPERATIONS[turn % len(OPERATIONS)]
        with tempfile.TemporaryDirectory(prefix="cplife-") as folder:
            place = Path(folder)
            stage = FuzzStage("pytest_cplife.fuzz.bare:Bare", launcher, place, meshes, timeout=60)
            dtypes = DTYPES if operation == "dcp" else MOVED_BY_GLOO
            suite = Rest(stage, operation, dtypes=dtypes, partial=REDUCE_OPS)
            outcome = search(suite, explore(min(ROUND, end - time.monotonic())))
        tried[operation] += outcome.judged
        turn += 1
        if outcome.found is not None:
            found = suite.to_json(outcome.found.example)
            first = outcome.found.violations[0]
            told = {"kind": first.moment, "observed": first.observed}
            print(json.dumps({**found, **told}), flush=True)
    launcher.close()
    for operation, count in tried.items():
        print(f"{operation}: {count} examples")


if __name__ == "__main__":
    main()
