"""Fuzzing as a run among runs: what a search found, in the form that rules judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pytest_cplife.evidence.assemble import Assembler
from pytest_cplife.evidence.journal import RankJournal
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.fuzz.lifecycle import Lifecycle
from pytest_cplife.fuzz.plan_suites import LifecycleSuite, MeshPairSuite
from pytest_cplife.fuzz.profiles import Profile
from pytest_cplife.fuzz.replay import read_replay, write_replay
from pytest_cplife.fuzz.search import Search, Suite, search
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite, StrideSuite
from pytest_cplife.launchers.base import Launcher
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation
from pytest_cplife.settings import Settings


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What came of one search.

    Attributes:
        examples: how many examples were tried and said anything.
        seconds: how long that took.
        seed: of the last round, None in a deterministic profile.
        violations: of the smallest failing example; empty where there was none.
        shown: that example for a reader: mesh, shapes, placements, plan.
        replay: the file that it is kept in.
    """

    examples: int
    seconds: float
    seed: int | None = None
    violations: tuple[Violation, ...] = ()
    shown: str = ""
    replay: str = ""


class Fuzzer:
    """Makes the fuzz runs of one adapter, each when first asked for and once."""

    def __init__(
        self,
        settings: Settings,
        meshes: Sequence[MeshSpec],
        launcher: Launcher,
        profile: Profile,
    ) -> None:
        """
        Args:
            meshes: what examples may be on, simplest first.
        """
        self._settings = settings
        self._profile = profile
        self._folder = settings.workdir / "fuzz"
        self.stage = FuzzStage(
            settings.adapter,
            launcher,
            self._folder / "examples",
            tuple(meshes),
            steps=settings.steps,
            seed=settings.seed,
            timeout=settings.timeout,
        )
        self._made: dict[str, RunEvidence] = {}

    @cached_property
    def driver(self) -> Lifecycle:
        """One for all plans: the model that they are judged by is made once."""
        return Lifecycle(self.stage)

    def run(self, name: str) -> RunEvidence:
        """The evidence of the run `name` of `FUZZ_RUNS`: one journal with the fact ``fuzzed``."""
        if name not in self._made:
            fact = self._searched(FUZZ_RUNS[name](self))
            journal = RankJournal(facts={"fuzzed": fact, "replay": fact.replay, "capabilities": ()})
            # No rule asks for a tensor: what is wrong was found while the examples were tried.
            nowhere = Assembler(TensorStore(self._folder / "tensors"))
            self._made[name] = RunEvidence(name, None, (journal,), None, nowhere)
        return self._made[name]

    def _searched(self, suite: Suite[Any]) -> Fuzzed:
        self.stage.folder.mkdir(parents=True, exist_ok=True)
        # Only where the examples are others every time anyway: the rest is the same everywhere.
        first = () if self._profile.derandomize else self._known(suite)
        outcome = search(suite, self._profile, first)
        if outcome.found is None:
            return Fuzzed(outcome.judged, outcome.seconds, outcome.seed)
        return Fuzzed(
            outcome.judged,
            outcome.seconds,
            outcome.seed,
            outcome.found.violations,
            suite.show(outcome.found.example),
            str(self._kept(suite, outcome)),
        )

    @property
    def _place(self) -> Path:
        return self._settings.kept or self._folder

    def _known(self, suite: Suite[Any]) -> Iterator[Any]:
        """The examples of `suite` that are kept of this adapter, and still mean something."""
        for path in sorted(self._place.glob(f"{_file_name(suite)}-*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                replay = read_replay(path)
                mine = (replay.suite, replay.adapter) == (suite.name, self._settings.adapter)
                if mine and set(replay.meshes) <= {spec.option for spec in self.stage.meshes}:
                    yield suite.from_json(replay.example)

    def _kept(self, suite: Suite[Any], outcome: Search[Any]) -> Path:
        """Where the failing example was written: what is found again has one file."""
        assert outcome.found is not None
        said = [self._settings.adapter, suite.to_json(outcome.found.example)]
        digest = blake2b(json.dumps(said).encode(), digest_size=4).hexdigest()
        self._place.mkdir(parents=True, exist_ok=True)
        path = self._place / f"{_file_name(suite)}-{digest}.json"
        write_replay(path, suite, self.stage, outcome.found)
        return path


def _file_name(suite: Suite[Any]) -> str:
    return suite.name.replace(" ", "-")


FUZZ_RUNS: dict[str, Callable[[Fuzzer], Suite[Any]]] = {
    "fuzz round trip": lambda fuzzer: RoundTripSuite(fuzzer.stage),
    "fuzz strides": lambda fuzzer: StrideSuite(fuzzer.stage),
    "fuzz mesh pair": lambda fuzzer: MeshPairSuite(fuzzer.stage, fuzzer.driver),
    "fuzz lifecycle": lambda fuzzer: LifecycleSuite(fuzzer.stage, fuzzer.driver),
}
"""The runs that the FUZZ rules name, each a search of one suite."""
