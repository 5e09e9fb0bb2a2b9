"""What the suite costs on a trainer: seconds per run, and how much of them is the suite's own.

    python -m benchmarks.suite [--adapter MOD:ATTR] [--mesh SPEC ...]

A run's own share is the time that its ranks spend in snapshots, in hooks around optimizer steps
and in reading files for evidence, as the mean over the ranks; the rest is the trainer's, and
waiting for other ranks. Judging is what rules take once all evidence is there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from pytest_cplife.evidence import journal, trace
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.loading import load_adapter
from pytest_cplife.mesh import MeshSpec, parse_meshes
from pytest_cplife.rules.registry import all_rules
from pytest_cplife.scenarios.order import Order, Stage
from pytest_cplife.scenarios.runner import Runner
from pytest_cplife.scenarios.table import RunKind
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings
from pytest_cplife.suite import MESHLESS_GROUPS

REFERENCE = "pytest_cplife.reference_impl:Adapter"


@dataclass
class Costs:
    """Seconds by name of the run, over all meshes."""

    wall: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    own: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


_spent = [0.0]
"""This process's own seconds since the last run began; on a rank, that is a rank's."""


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        before, start = _spent[0], time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            # What was timed inside is part of this, and counts once.
            _spent[0] = before + time.perf_counter() - start

    return timed


@contextmanager
def clocks(costs: Costs) -> Iterator[None]:
    """Ranks forked inside the block time their own work and leave it beside their journals."""
    patches: list[tuple[Any, str, Any]] = [
        (journal.Recorder, name, _timed(getattr(journal.Recorder, name)))
        for name in ("moment", "file", "fact", "_write")
    ]
    patches += [(Stage, "file", _timed(Stage.file)), (trace, "_look", _timed(trace._look))]
    patches.append((Runner, "_execute", _weighed(Runner._execute, costs)))
    was = [(place, name, getattr(place, name)) for place, name, _ in patches]
    for place, name, value in patches:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in was:
            setattr(place, name, value)


def _weighed(execute: Callable[..., RunEvidence], costs: Costs) -> Callable[..., RunEvidence]:
    def execute_and_weigh(
        self: Runner, kind: RunKind, order: Order, spec: MeshSpec | None
    ) -> RunEvidence:
        world = self._world(kind, spec)  # forked before the clock starts: worlds live on
        world.run(_start_clock)
        start = time.perf_counter()
        evidence = execute(self, kind, order, spec)
        costs.wall[kind.name] += time.perf_counter() - start
        spent = self._world(kind, spec).run(_own_seconds)
        costs.own[kind.name] += sum(spent) / len(spent)
        return evidence

    return execute_and_weigh


def _start_clock(rank: Any) -> None:
    _spent[0] = 0.0


def _own_seconds(rank: Any) -> float:
    return _spent[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", default=REFERENCE)
    parser.add_argument("--mesh", action="append", default=[])
    given = parser.parse_args()
    meshes = parse_meshes(given.mesh or load_adapter(given.adapter).meshes)
    costs = Costs()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, clocks(costs):
        settings = Settings(adapter=given.adapter, workdir=Path(folder), meshes=meshes)
        with Session(settings) as session:
            for rule in all_rules():
                for spec in (None,) if rule.group in MESHLESS_GROUPS else meshes:
                    session.judge(rule, spec)
    total = time.perf_counter() - start
    print(f"{given.adapter} on {', '.join(map(str, meshes))}")
    print(f"{'run':<16} {'seconds':>8} {'own':>6}")
    for name, wall in sorted(costs.wall.items(), key=lambda item: -item[1]):
        print(f"{name:<16} {wall:>8.2f} {costs.own[name] / wall:>6.0%}")
    runs = sum(costs.wall.values())
    print(f"{'all runs':<16} {runs:>8.2f} {sum(costs.own.values()) / runs:>6.0%}")
    print(f"all else (starting ranks, judging) {total - runs:.2f} s; in all {total:.2f} s")


if __name__ == "__main__":
    main()
