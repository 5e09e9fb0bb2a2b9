"""Checkpoints beside torch's own, on the same state: seconds and ratios.

    python benchmarks/checkpoint.py --mib 64 --ranks 1 4

Ours makes everything durable and checked (temporary directory, fsync, checksums, manifest,
rename; on reading: checksums, tiling, a restricted ``.metadata``, fresh memory). Beside it bare
``torch.distributed.checkpoint`` (its default syncs files, too), and ``torch.save`` of the
gathered state. The page cache is warm; the median of the repetitions counts, alternating.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.checkpoint import read_plain, save_plain
from pytest_cplife.reference_impl.plain import realign
from pytest_cplife.reference_impl.sharded import DCP
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec

ROW = 1024


def make_state(mesh: Any, mib: int) -> dict[str, DTensor]:
    """`mib` MiB in sixteen tensors, cut over the ranks."""
    rows = mib * 2**20 // (16 * ROW * 4)
    return {
        f"layer.{i}": distribute_tensor(
            torch.full((rows, ROW), float(i)), mesh, [Shard(0)], src_data_rank=None
        )
        for i in range(16)
    }


def seconds(action: Callable[[], object]) -> float:
    dist.barrier()
    began = time.perf_counter()
    action()
    dist.barrier()
    return time.perf_counter() - began


def measure(rank: Rank, folder: Path, mib: int, repeats: int) -> dict[str, float]:
    warnings.simplefilter("ignore")
    mesh = rank.mesh(MeshSpec.parse(f"fsdp={rank.world_size}"))
    state = make_state(mesh, mib)
    target: dict[str, Any] = {name: torch.zeros_like(value) for name, value in state.items()}

    def torch_save() -> None:
        full = {name: value.full_tensor() for name, value in state.items()}
        if rank.rank == 0:
            torch.save(full, folder / "bare.pt")

    def torch_load() -> None:
        full = torch.load(folder / "bare.pt", weights_only=True, mmap=True)
        for name, value in target.items():
            value.copy_(realign(full[name], value))

    def plain_load() -> None:
        full = read_plain(folder / "ours.pt")["model"]
        for name, value in target.items():
            value.copy_(realign(full[name], value))

    def fresh_dcp() -> None:
        dcp_save(dict(state), checkpoint_id=folder / "bare")

    actions: dict[str, Callable[[], object]] = {
        "save torch.save": torch_save,
        "save plain": lambda: save_plain({"model": state}, folder / "ours.pt"),
        "load torch.load": torch_load,
        "load plain": plain_load,
        "save bare DCP": fresh_dcp,
        "save DCP": lambda: DCP.save({"model": state}, folder / "ours"),
        "load bare DCP": lambda: dcp_load(target, checkpoint_id=folder / "bare"),
        "load DCP": lambda: DCP.load({"model": dict(target)}, folder / "ours"),
    }
    fresh = {"save bare DCP": "bare", "save DCP": "ours"}
    times: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(repeats + 1):
        for name, action in actions.items():
            # Every save writes to a path of its own; what was there is removed untimed.
            if name in fresh and rank.rank == 0:
                shutil.rmtree(folder / fresh[name], ignore_errors=True)
            spent = seconds(action)
            if repeat:  # the first is a warm-up
                times[name].append(spent)
    return {name: statistics.median(values) for name, values in times.items()}


PAIRS = (
    ("save plain", "save torch.save"),
    ("load plain", "load torch.load"),
    ("save DCP", "save bare DCP"),
    ("load DCP", "load bare DCP"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the state")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    given = parser.parse_args()
    launcher = make_launcher("processes", timeout=1200.0)
    print(f"{given.mib} MiB, median of {given.repeats}, {os.cpu_count()} cores")
    print(f"{'ranks':>5}  {'ours':<11} {'seconds':>8}  {'beside':<16} {'seconds':>8} {'ratio':>6}")
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            result = launcher.world(ranks).run(measure, Path(folder), given.mib, given.repeats)[0]
        for ours, theirs in PAIRS:
            a, b = result[ours], result[theirs]
            print(f"{ranks:>5}  {ours:<11} {a:>8.3f}  {theirs:<16} {b:>8.3f} {a / b:>6.2f}")
    launcher.close()


if __name__ == "__main__":
    main()
