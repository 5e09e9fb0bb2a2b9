"""A launcher that the tests of one module share, as a session of the plugin does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_cplife.launchers import Launcher, make_launcher


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    made = make_launcher("processes", timeout=60)
    yield made
    made.close()
