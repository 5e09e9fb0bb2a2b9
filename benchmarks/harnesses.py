"""One interface to every harness: run the workload as a test, and say how long it took."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.workload import RANKS, fresh_mesh, on_rank, work
from pytest_cplife.launchers import make_launcher

ROOT = Path(__file__).parents[1]
_MARKED = """
import pytest
from benchmarks.workload import work

@pytest.mark.cplife(mesh="dp=2,cp=2")
@pytest.mark.parametrize("n", range({count}))
def test_workload(cplife_mesh, n):
    work(cplife_mesh)
"""


class Harness:
    """A way to run tests; `again` tests per round after the first."""

    again = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def test(self) -> None:
        raise NotImplementedError

    def round(self) -> Iterator[float]:
        """Seconds of each test of one round."""
        for _ in range(self.again):
            began = time.perf_counter()
            self.test()
            yield time.perf_counter() - began

    def close(self) -> None:
        """End what lives between tests."""


class Ours(Harness):
    """Our ranks, through `World.run`."""

    again = 20

    def __init__(self, launcher: str) -> None:
        super().__init__(f"launcher `{launcher}`")
        self.launcher = make_launcher(launcher, timeout=600)

    def test(self) -> None:
        self.launcher.world(RANKS).run(on_rank)

    def close(self) -> None:
        self.launcher.close()


class Marked(Harness):
    """Tests with our marker, by pytest's own account of their setup, call and teardown."""

    again = 20

    def __init__(self) -> None:
        super().__init__("marker `cplife` under pytest")
        self._first = True

    def round(self) -> Iterator[float]:
        with tempfile.TemporaryDirectory(prefix="cplife-") as folder:
            path, report = Path(folder) / "test_marked.py", Path(folder) / "report.xml"
            path.write_text(_MARKED.format(count=self.again + 1))
            arguments = ("-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(path))
            subprocess.run(
                [sys.executable, "-m", "pytest", *arguments],
                cwd=ROOT,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            times = [float(case.attrib["time"]) for case in ET.parse(report).iter("testcase")]
        # Every round is a run of pytest with a first test of its own, told only once.
        yield from times if self._first else times[1:]
        self._first = False


class Spawn(Harness):
    """`torch.multiprocessing.spawn` in every test."""

    def __init__(self) -> None:
        super().__init__("`torch.multiprocessing.spawn` per test")

    def test(self) -> None:
        with tempfile.TemporaryDirectory(prefix="cplife-") as folder:
            mp.spawn(spawned, args=(f"{folder}/store",), nprocs=RANKS)


def spawned(rank: int, store: str) -> None:
    """The spawned process; at the top level, where it is found."""
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    work(fresh_mesh())
    dist.destroy_process_group()


class UnitTest(Harness):
    """One of torch's test cases; its class is set up once, as unittest does."""

    def __init__(self, name: str, case: Any, again: int = 1) -> None:
        super().__init__(name)
        self.case = case
        self.again = again
        # The default of these harnesses, which some of them take only where nobody was before.
        mp.set_start_method("spawn", force=True)
        case.setUpClass()

    def test(self) -> None:
        result = unittest.TestResult()
        self.case("test_workload").run(result)
        if not result.wasSuccessful() or result.skipped:
            raise RuntimeError(f"{self.name}: {result.errors + result.failures + result.skipped}")

    def close(self) -> None:
        self.case.tearDownClass()


def harnesses() -> Iterator[Harness]:
    """All of them; torch's own where what they need is installed."""
    yield Ours("processes")
    yield Ours("threads")
    yield Marked()
    yield Spawn()
    if importlib.util.find_spec("expecttest") is None:
        print("torch's own test cases are left out: they need the package expecttest")
        return
    from benchmarks import rivals

    yield UnitTest("`MultiProcessTestCase`", rivals.PerTest)
    yield UnitTest("`DTensorTestBase`", rivals.DTensorPerTest)
    yield UnitTest("`MultiProcContinuousTest`", rivals.Continuous, again=20)
    yield UnitTest("`MultiThreadedTestCase`", rivals.Threaded, again=3)
