"""What a session was asked for, as one value that travels to every process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_cplife.mesh import MeshSpec

PROFILES = ("quick", "gate", "explore", "off")
"""How much fuzzing tries: a look of seconds, a fixed set of examples, others every time until a
time is over, nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved options of one session.

    Attributes:
        adapter: ``MOD:ATTR`` or ``path/to/file.py:ATTR``.
        workdir: a private folder for evidence and checkpoints.
        meshes: the meshes asked for; empty takes the adapter's own.
        max_world_size: larger meshes are not run; None means no limit.
        steps: optimizer steps before the save, and after it.
        launcher, device, backend: how ranks come to be (``auto`` picks the backend by device).
        timeout: seconds that one call on a world may take.
        seed: the seed of every run.
        strict: "not covered" is a failure.
        require: capabilities whose absence is a failure.
        golden: a folder of golden archives to load.
        profile: how much the FUZZ rules try, one of `PROFILES`.
        fuzz_seconds: how long each of them tries in profile ``explore``.
        kept: a folder for what outlives the session (examples that failed); None takes `workdir`.
    """

    adapter: str
    workdir: Path
    meshes: tuple[MeshSpec, ...] = ()
    max_world_size: int | None = None
    steps: tuple[int, int] = (3, 2)
    launcher: str = "processes"
    device: str = "cpu"
    backend: str = "auto"
    timeout: float = 120.0
    seed: int = 20
    strict: bool = False
    require: tuple[str, ...] = ()
    golden: Path | None = None
    profile: str = "quick"
    fuzz_seconds: float = 60.0
    kept: Path | None = None
