"""The same workload in the harnesses that torch's own tests are written with.

They are private parts of torch and need the package ``expecttest``.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
)
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms

from benchmarks.workload import RANKS, fresh_mesh, kept_mesh, work


class PerTest(MultiProcessTestCase):
    """Processes for each test."""

    @property
    def world_size(self) -> int:
        return RANKS

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def test_workload(self) -> None:
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        work(fresh_mesh())
        dist.destroy_process_group()

    def tearDown(self) -> None:
        super().tearDown()
        Path(self.file_name).unlink(missing_ok=True)


class DTensorPerTest(DTensorTestBase):
    """Processes for each test, as DTensor's tests have them."""

    @property
    def world_size(self) -> int:
        return RANKS

    @with_comms
    def test_workload(self) -> None:
        work(fresh_mesh())


class Continuous(MultiProcContinuousTest):
    """Processes for each class of tests."""

    world_size = RANKS
    timeout = timedelta(minutes=10)

    @classmethod
    def backend_str(cls) -> str:
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        return "cpu"

    def test_workload(self) -> None:
        work(kept_mesh())


class Threaded(MultiThreadedTestCase):
    """Threads for each test, on a process group that only imitates one."""

    @property
    def world_size(self) -> int:
        return RANKS

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def test_workload(self) -> None:
        work(fresh_mesh())
