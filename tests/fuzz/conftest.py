"""Live worlds for the fuzz tests, shared by all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Launcher
from pytest_cplife.mesh import MeshSpec

StageFactory = Callable[..., FuzzStage]


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    made = make_launcher("processes", device="cpu", timeout=60)
    yield made
    made.close()


@pytest.fixture
def stage(launcher: Launcher, tmp_path: Path) -> StageFactory:
    """Makes a stage for an adapter: on 2 and on 4 ranks, unless told otherwise."""

    def make(adapter: str, meshes: Sequence[str] = ("dp=2", "dp=2,tp=2")) -> FuzzStage:
        return FuzzStage(adapter, launcher, tmp_path, [MeshSpec.parse(mesh) for mesh in meshes])

    return make
