"""A lab for every test of a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cplife.evidence.store import TensorStore
from tests.rules.builders import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(TensorStore(tmp_path))
