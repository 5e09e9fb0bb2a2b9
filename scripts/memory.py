"""Peak memory of the ranks other than 0 during a plain save, over what they hold anyway.

    python scripts/memory.py --mib 512

The save gathers one tensor after another; only rank 0 keeps them. Ranks other than 0 may go over
their resident state by one full tensor and 5 per cent.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.checkpoint import save_plain
from pytest_cplife.reference_impl.topology import global_dtensor
from torch.distributed.tensor import Shard

from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec

ROW = 4096


def resident() -> int:
    """Bytes of anonymous memory that this process has now (files mapped in do not count)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


class Peak:
    """The highest `resident` while the block runs, sampled every millisecond."""

    def __enter__(self) -> Peak:
        self.before = self.highest = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self.highest = max(self.highest, resident())

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def over(self) -> int:
        return self.highest - self.before


def measure(rank: Rank, path: Path, mib: int, tensors: int) -> tuple[int, int]:
    mesh = rank.mesh(MeshSpec.parse(f"fsdp={rank.world_size}"))
    rows = mib * 2**20 // (tensors * ROW * 4 * rank.world_size)
    state = {}
    for i in range(tensors):
        local = torch.full((rows, ROW), float(i + 1))
        shape = (rows * rank.world_size, ROW)
        state[f"layer.{i}"] = global_dtensor(local, mesh, [Shard(0)], shape)
    largest = max(tensor.numel() * tensor.element_size() for tensor in state.values())
    small = global_dtensor(torch.ones(1, 4), mesh, [Shard(0)], (rank.world_size, 4))
    save_plain({"model": {"warm": small}}, path.with_suffix(".warm"))
    dist.barrier()
    with Peak() as peak:
        save_plain({"model": state}, path)
    return peak.over, largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    launcher = make_launcher("processes", timeout=600.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.pt"
        results = launcher.world(given.ranks).run(measure, path, given.mib, given.tensors)
    launcher.close()
    failed = False
    for rank, (over, largest) in enumerate(results):
        ratio = over / largest
        failed |= rank > 0 and ratio > 1.05
        print(
            f"rank {rank}: {over / 2**20:7.1f} MiB over its state; largest tensor"
            f" {largest / 2**20:.1f} MiB, ratio {ratio:.2f}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
