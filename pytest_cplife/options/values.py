"""What the options come to: values that the rest of the plugin asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.options.table import DEFAULTS, LEVELS
from pytest_cplife.settings import Settings

if TYPE_CHECKING:
    from pytest_cplife.rules.model import Level


@dataclass(frozen=True, slots=True)
class Options:
    """What the session was asked for.

    Attributes:
        adapter: as the user gave it.
        base: the folder that a relative module or path of the adapter is meant from.
        given_by_option: the adapter stands on the command line, not in the ini file.
        suite: the conformance suite is to be added to the user's tests.
        level: with "must" a rule that only says what should be cannot fail the run.
        golden: the archives to load; None also where the first is yet to be recorded there.
    """

    adapter: str
    base: Path
    given_by_option: bool
    suite: bool
    meshes: tuple[MeshSpec, ...]
    max_world_size: int | None
    steps: tuple[int, int]
    launcher: str
    device: str
    backend: str
    timeout: float
    strict: bool
    level: Level
    require: tuple[str, ...]
    expected: Path | None
    golden: Path | None
    record_golden: Path | None
    reports: tuple[Path, ...]
    profile: str
    fuzz_seconds: float
    certify: bool

    @property
    def reference(self) -> str:
        """The adapter, as any process can find it whatever its current directory."""
        return reference(self.adapter, self.base)

    def settings(self, workdir: Path, kept: Path | None = None) -> Settings:
        """The same for a session that works in `workdir` and keeps in `kept` what outlives it."""
        return Settings(
            adapter=self.reference,
            workdir=workdir,
            meshes=self.meshes,
            max_world_size=self.max_world_size,
            steps=self.steps,
            launcher=self.launcher,
            device=self.device,
            backend=self.backend,
            timeout=self.timeout,
            strict=self.strict,
            require=self.require,
            golden=self.golden,
            profile=self.profile,
            fuzz_seconds=self.fuzz_seconds,
            kept=kept,
        )

    def command(self, rule: str, mesh: str) -> list[str]:
        """The arguments that run just `rule` on `mesh` again.

        The meshes stay what they were, because a rule may load on one what was saved on another.
        """
        words = self._words()
        words += [f"--cplife-mesh={spec.option}" for spec in self.meshes]
        if self.max_world_size is not None:
            words.append(f"--cplife-max-world-size={self.max_world_size}")
        if self.steps != DEFAULTS.steps:
            words.append(f"--cplife-steps={','.join(map(str, self.steps))}")
        if self.profile != DEFAULTS.profile:
            words.append(f"--cplife-profile={self.profile}")
        if self.fuzz_seconds != DEFAULTS.fuzz_seconds:
            words.append(f"--cplife-fuzz-seconds={self.fuzz_seconds:g}")
        if self.strict:
            words.append("--cplife-strict")
        if self.level != LEVELS[0]:
            words.append(f"--cplife-level={self.level}")
        if self.require:
            words.append(f"--cplife-require={','.join(self.require)}")
        if self.golden is not None:
            words.append(f"--cplife-golden={self.golden}")
        # The brackets are part of the test's id: without them dp2 would also select dp2-cp2.
        return [*words, "-k", f"{rule} and [{mesh}]" if mesh else rule]

    def replay_command(self, file: str) -> list[str]:
        """The arguments that try the example in `file` again; all else that it needs is in it."""
        path, here = Path(file), Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return [*self._words(), f"--cplife-replay={shown}"]

    def _words(self) -> list[str]:
        """The beginning of every command: which trainer, and how its ranks come to be."""
        words = ["pytest", f"--cplife-adapter={self.adapter}"]
        for name in ("device", "backend", "launcher"):
            if getattr(self, name) != getattr(DEFAULTS, name):
                words.append(f"--cplife-{name}={getattr(self, name)}")
        if self.timeout != DEFAULTS.timeout:
            words.append(f"--cplife-timeout={self.timeout:g}")
        return words


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How ranks come to be, for the suite and for users' own tests."""

    max_world_size: int | None
    launcher: str
    device: str
    backend: str
    timeout: float


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """A run that tries one example again.

    Attributes:
        file: where the example is kept.
        adapter: the adapter to try it on; None takes the one that failed.
        ranks: how its ranks come to be.
    """

    file: Path
    adapter: str | None
    ranks: RankOptions


def reference(adapter: str, base: Path) -> str:
    """An adapter that was given in the folder `base`, as any process can find it."""
    place, colon, attribute = adapter.rpartition(":")
    if colon and place.endswith(".py"):
        return f"{base / place}:{attribute}"
    return adapter
