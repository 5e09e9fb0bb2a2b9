"""Worlds for these tests. The forked ranks are what threads are compared with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Launcher, World


@pytest.fixture(scope="session")
def threads() -> Iterator[Launcher]:
    launcher = make_launcher("threads", timeout=60.0)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def processes() -> Iterator[Launcher]:
    launcher = make_launcher("processes", timeout=60.0)
    yield launcher
    launcher.close()


@pytest.fixture
def four(threads: Launcher) -> World:
    return threads.world(4)


@pytest.fixture
def two(threads: Launcher) -> World:
    return threads.world(2)
