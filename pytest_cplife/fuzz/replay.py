"""Replay files: an example that failed, as JSON that no version of hypothesis is needed to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cplife.fuzz.moves import OPERATIONS, MoveSuite
from pytest_cplife.fuzz.plan_suites import LifecycleSuite, MeshPairSuite
from pytest_cplife.fuzz.search import Found, Suite
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite, StrideSuite
from pytest_cplife.mesh import parse_meshes

FORMAT = "pytest-cplife fuzz example"
VERSION = 1

_MAX_DETAIL_LINES = 18

SUITES: dict[str, Callable[[FuzzStage], Suite[Any]]] = {
    "round trip": RoundTripSuite,
    "strides": StrideSuite,
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
        shown: the example for a reader.
        violations: what was wrong then.
    """

    suite: str
    adapter: str
    meshes: tuple[str, ...]
    steps: tuple[int, int]
    seed: int
    example: dict[str, Any]
    shown: tuple[str, ...]
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
        OSError: it cannot be read.
        ValueError: it is none, or of a version that this one does not know.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"it is no replay file: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"it is no replay file: it has no format {FORMAT!r}")
    if data.get("version") != VERSION:
        raise ValueError(f"it is of version {data.get('version')}; version {VERSION} is known")
    if data.get("suite") not in SUITES:
        raise ValueError(f"it is of suite {data.get('suite')!r}; there are {', '.join(SUITES)}")
    try:
        before, after = map(int, data["steps"])
        parse_meshes(data["meshes"])
        return Replay(
            suite=data["suite"],
            adapter=str(data["adapter"]),
            meshes=tuple(data["meshes"]),
            steps=(before, after),
            seed=int(data["seed"]),
            example=dict(data["example"]),
            shown=tuple(data["shown"]),
            violations=tuple(data["violations"]),
        )
    except KeyError as missing:
        raise ValueError(f"it is damaged: it has no {missing}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"it is damaged: {error}") from None


class BadExample(ValueError):
    """The example in a replay file is none of its suite's."""


def run_replay(replay: Replay, stage: FuzzStage) -> Found[Any]:
    """Try the example again; no violations where nothing is wrong any more.

    The meshes, steps and seed of `stage` become those that the failure was found with.

    Raises:
        BadExample: there is no such example.
    """
    stage.meshes = parse_meshes(replay.meshes)
    stage.steps = replay.steps
    stage.seed = replay.seed
    suite = SUITES[replay.suite](stage)
    try:
        example = suite.from_json(replay.example)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadExample(f"{type(error).__name__}: {error}") from None
    return Found(example, tuple(suite.check(example) or ()))


def explain(replay: Replay, found: Found[Any]) -> str:
    """What is wrong with the example of `replay`, for a reader."""
    lines = [f"suite {replay.suite!r}, example:", *(f"    {line}" for line in replay.shown)]
    for violation in found.violations[:5]:
        ranks = f" on ranks {', '.join(map(str, violation.ranks))}" if violation.ranks else ""
        lines.append(f"{violation.moment}, {violation.subject}{ranks}:")
        lines.append(f"    expected {violation.expected}")
        lines.append(f"    observed {violation.observed}")
    if len(found.violations) > 5:
        lines.append(f"and {len(found.violations) - 5} more")
    detail = next((violation.detail for violation in found.violations if violation.detail), "")
    lines += [f"  | {line}" for line in detail.splitlines()[-_MAX_DETAIL_LINES:]]
    return "\n".join(lines)
