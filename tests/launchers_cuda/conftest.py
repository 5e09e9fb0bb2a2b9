"""Tests that need a GPU. They run by ``scripts/gpu_gate.sh``, in a pytest of their own.

Nothing in this process may use CUDA or compute gradients: ranks are forked from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_cplife.launchers import Launcher, make_launcher
from pytest_cplife.launchers.gpus import count_devices, stay_forkable

stay_forkable(os.environ)


@pytest.fixture(scope="session", autouse=True)
def gpus() -> int:
    """How many GPUs there are; without any, all of these tests are skipped."""
    try:
        return count_devices()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def several(gpus: int) -> int:
    """The same, for tests that need more than one."""
    if gpus < 2:
        pytest.skip(f"needs 2 GPUs, there is {gpus}")
    return gpus


@pytest.fixture(scope="session")
def gloo(gpus: int) -> Iterator[Launcher]:
    """Ranks that share GPUs."""
    made = make_launcher("processes", device="cuda", backend="gloo", timeout=60)
    yield made
    made.close()


@pytest.fixture(scope="session")
def nccl(gpus: int) -> Iterator[Launcher]:
    """One rank per GPU."""
    made = make_launcher("processes", device="cuda", timeout=60)
    yield made
    made.close()
