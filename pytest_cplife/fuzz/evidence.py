"""Fuzzing as a run among runs: what a search found, in the form that rules judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.journal import RankJournal
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.fuzz.plan_suites import LifecycleSuite, MeshPairSuite
from pytest_cplife.fuzz.profiles import GATE, QUICK, Profile, explore
from pytest_cplife.fuzz.replay import explain, write_replay
from pytest_cplife.fuzz.search import Suite, search
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite
from pytest_cplife.fuzz.tensors import PLAIN_LAYOUTS
from pytest_cplife.launchers.base import Launcher
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation
from pytest_cplife.settings import Settings


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What came of one search.

    Attributes:
        examples: how many examples were tried.
        seconds: how long that took.
        seed: of the last round, None in a deterministic profile.
        violations: of the smallest failing example; empty where there was none.
        text: that example and the command that tries it again.
        replay: the replay file.
    """

    examples: int
    seconds: float
    seed: int | None
    violations: tuple[Violation, ...] = ()
    text: str = ""
    replay: str = ""


def _round_trips(stage: FuzzStage) -> Suite[Any]:
    # The stride of a template is a rule of its own; whoever breaks it may keep all the others.
    return RoundTripSuite(stage, layouts=[each for each in PLAIN_LAYOUTS if each != "transposed"])


FUZZ_RUNS: dict[str, Callable[[FuzzStage], Suite[Any]]] = {
    "fuzz round trip": _round_trips,
    "fuzz strides": RoundTripSuite,
    "fuzz mesh pair": MeshPairSuite,
    "fuzz lifecycle": LifecycleSuite,
}
"""The runs that the FUZZ rules name, each a search of one suite."""


def profile_named(name: str, seconds: float | None = None, database: Path | None = None) -> Profile:
    """The profile that ``--cplife-profile`` calls `name`; `seconds` and `database` of explore.

    Raises:
        ValueError: there is none of that name.
    """
    if name == "explore":
        return explore(60.0 if seconds is None else seconds, database)
    profiles = {"quick": QUICK, "gate": GATE}
    if name not in profiles:
        raise ValueError(f"no profile {name!r}; accepted are quick, gate and explore")
    return profiles[name]


def fuzzed(
    name: str,
    settings: Settings,
    meshes: Sequence[MeshSpec],
    launcher: Launcher,
    profile: Profile = QUICK,
) -> RunEvidence:
    """Search as the run `name` says; the evidence has one journal with the fact ``fuzzed``."""
    folder = settings.workdir / "fuzz" / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    stage = FuzzStage(
        settings.adapter,
        launcher,
        folder,
        tuple(meshes),
        steps=settings.steps,
        seed=settings.seed,
        timeout=settings.timeout,
    )
    suite = FUZZ_RUNS[name](stage)
    outcome = search(suite, profile)
    fact = Fuzzed(outcome.examples, outcome.seconds, outcome.seed)
    if outcome.found is not None:
        replay = folder / "replay.json"
        write_replay(replay, suite, stage, outcome.found)
        fact = Fuzzed(
            outcome.examples,
            outcome.seconds,
            outcome.seed,
            outcome.found.violations,
            explain(suite, outcome.found, replay),
            str(replay),
        )
    journal = RankJournal(facts={"fuzzed": fact})
    return RunEvidence(name, None, (journal,), None, Assembler(TensorStore(folder / "tensors")))
