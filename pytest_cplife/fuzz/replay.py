"""Replay files: an example that failed, as JSON that no version of hypothesis is needed to read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cplife.fuzz.moves import OPERATIONS, MoveSuite
from pytest_cplife.fuzz.plan_suites import LifecycleSuite, MeshPairSuite
from pytest_cplife.fuzz.search import Found, Suite
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite
from pytest_cplife.mesh import parse_meshes
from pytest_cplife.rules.model import Violation

FORMAT = "pytest-cplife fuzz example"
VERSION = 1

SUITES: dict[str, Callable[[FuzzStage], Suite[Any]]] = {
    "round trip": RoundTripSuite,
    "mesh pair": MeshPairSuite,
    "lifecycle": LifecycleSuite,
    **{f"moves {operation}": partial(MoveSuite, operation=operation) for operation in OPERATIONS},
}
"""Every suite by name."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay file says.

    Attributes:
        suite: the suite's name.
        adapter: the adapter that failed.
        meshes: the meshes of the search; the model of a plan is made from all of them.
        steps, seed: as in :class:`FuzzStage`.
        example: the example, in the suite's own JSON.
        violations: what was wrong then.
    """

    suite: str
    adapter: str
    meshes: tuple[str, ...]
    steps: tuple[int, int]
    seed: int
    example: dict[str, Any]
    violations: tuple[dict[str, Any], ...]


def write_replay(path: Path, suite: Suite[Any], stage: FuzzStage, found: Found[Any]) -> None:
    """Write what was found to `path`."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "suite": suite.name,
        "adapter": stage.adapter,
        "meshes": [spec.option for spec in stage.meshes],
        "steps": list(stage.steps),
        "seed": stage.seed,
        "example": suite.to_json(found.example),
        "shown": suite.show(found.example).splitlines(),
        "violations": [asdict(violation) for violation in found.violations],
    }
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_replay(path: Path) -> Replay:
    """Read a replay file.

    Raises:
        ValueError: it is none, or of a version that this one does not know.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no replay file: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{path} is no replay file: it has no format {FORMAT!r}")
    if data["version"] != VERSION:
        raise ValueError(f"{path} is of version {data['version']}; version {VERSION} is known")
    if data["suite"] not in SUITES:
        raise ValueError(f"{path} is of suite {data['suite']!r}; there are {', '.join(SUITES)}")
    return Replay(
        suite=data["suite"],
        adapter=data["adapter"],
        meshes=tuple(data["meshes"]),
        steps=(data["steps"][0], data["steps"][1]),
        seed=data["seed"],
        example=data["example"],
        violations=tuple(data["violations"]),
    )


def stage_of(replay: Replay, stage: FuzzStage) -> FuzzStage:
    """`stage` with the meshes, steps and seed that the failure was found with."""
    stage.meshes = parse_meshes(replay.meshes)
    stage.steps = replay.steps
    stage.seed = replay.seed
    return stage


def run_replay(replay: Replay, stage: FuzzStage) -> tuple[Violation, ...]:
    """Try the example again; empty where nothing is wrong any more."""
    suite = SUITES[replay.suite](stage_of(replay, stage))
    return tuple(suite.check(suite.from_json(replay.example)))


def explain(suite: Suite[Any], found: Found[Any], replay: Path | None) -> str:
    """What was found, for a reader, with the command that shows it again."""
    lines = [f"smallest example of suite {suite.name!r}:"]
    lines += [f"    {line}" for line in suite.show(found.example).splitlines()]
    for violation in found.violations[:5]:
        ranks = f" on ranks {', '.join(map(str, violation.ranks))}" if violation.ranks else ""
        lines.append(f"{violation.moment}, {violation.subject}{ranks}:")
        lines.append(f"    expected {violation.expected}")
        lines.append(f"    observed {violation.observed}")
    if len(found.violations) > 5:
        lines.append(f"and {len(found.violations) - 5} more")
    if replay is not None:
        lines.append(f"replay with: python -m pytest_cplife.fuzz {shlex.quote(str(replay))}")
    return "\n".join(lines)
