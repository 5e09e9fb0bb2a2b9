"""SIGKILL during saves and overwrites, at random instants: what is on the disk afterwards?

Ranks save one state after another to one path; in state n every element is n. At a random
instant all ranks are killed. Then the path must load, with one value everywhere, and it must be
the last state that was finished or the one that was being written:

    python scripts/kill_test.py --kills 200

The methods ``torch.save`` and ``bare-dcp`` write in place, as a control that the kills hit.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.checkpoint import read_plain, save_plain
from pytest_cplife.reference_impl.sharded import DCP
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from pytest_cplife.launchers.warm import warm_parent

SHAPES = {"wide": (601, 515), "tall": (1003, 131), "small": (5,)}
RANKS = 2
METHODS = ("plain", "sharded", "torch.save", "bare-dcp")


def state(value: int, mesh: Any) -> dict[str, Any]:
    placements: dict[str, Placement] = {"wide": Shard(0), "tall": Shard(1), "small": Replicate()}
    return {
        name: distribute_tensor(
            torch.full(shape, float(value)), mesh, [placements[name]], src_data_rank=None
        )
        for name, shape in SHAPES.items()
    }


def save(method: str, value: int, mesh: Any, path: Path) -> None:
    tensors = state(value, mesh)
    if method == "plain":
        save_plain({"model": tensors}, path)
    elif method == "sharded":
        DCP.save({"model": tensors, "value": value}, path)
    elif method == "bare-dcp":
        dcp_save(tensors, checkpoint_id=path)
    else:
        full = {name: tensor.full_tensor() for name, tensor in tensors.items()}
        if dist.get_rank() == 0:
            torch.save(full, path)
        dist.barrier()


def read(method: str, path: Path) -> list[torch.Tensor]:
    """Every tensor at `path`, and further values as tensors."""
    if method == "plain":
        return list(read_plain(path)["model"].values())
    if method == "torch.save":
        return list(torch.load(path, weights_only=True).values())
    tensors = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    if method == "bare-dcp":
        dcp_load(tensors, checkpoint_id=path, no_dist=True)
        return list(tensors.values())
    found: dict[str, Any] = {"model": tensors, "value": 0}
    DCP.load(found, path)
    return [*found["model"].values(), torch.tensor(float(found["value"]))]


def rank_main(rank: int, method: str, path: Path, folder: str, finished: Synchronized[int]) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gloo's last words about killed peers
    warnings.simplefilter("ignore")
    store = dist.FileStore(f"{folder}/store", RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
    value = finished.value
    while True:
        value += 1
        save(method, value, mesh, path)
        dist.barrier()
        if rank == 0:
            finished.value = value


def _next_save(finished: Synchronized[int]) -> None:
    before, deadline = finished.value, time.monotonic() + 60
    while finished.value == before:
        if time.monotonic() > deadline:
            raise TimeoutError("nothing was saved in a minute")
        time.sleep(0.0005)


def one_kill(method: str, path: Path, finished: Synchronized[int], draw: random.Random) -> str:
    """Save in a loop, kill, look; what was found."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            context.Process(target=rank_main, args=(rank, method, path, folder, finished))
            for rank in range(RANKS)
        ]
        for worker in workers:
            worker.start()
        _next_save(finished)
        began = time.monotonic()
        _next_save(finished)
        duration = time.monotonic() - began
        time.sleep(draw.uniform(0.0, 1.1 * duration))
        ended = [worker.exitcode for worker in workers if not worker.is_alive()]
        assert not ended, f"{method}: a rank has ended by itself ({ended})"
        for worker in draw.sample(workers, RANKS):
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            # Killed one after the other, the second may notice the first, and clean up.
            time.sleep(draw.choice([0.0, 0.0, 0.005]))
        for worker in workers:
            worker.join()
    last = finished.value
    try:
        values = {float(v) for tensor in read(method, path) for v in (tensor.min(), tensor.max())}
    except (Exception, CheckpointException):
        return "lost"
    if len(values) > 1:
        return "mixture"
    found = int(values.pop())
    finished.value = found
    if found == last:
        return "old"
    return "new" if found == last + 1 else "wrong"


def tally(method: str, kills: int, seed: int) -> collections.Counter[str]:
    """Counts of what `kills` kills left behind."""
    draw = random.Random(f"{seed} {method}")
    finished = multiprocessing.get_context("fork").Value("q", 0)
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(kills):
            counts[one_kill(method, Path(folder) / "checkpoint", finished, draw)] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="per method")
    parser.add_argument("--method", action="append", choices=METHODS, help="default: the first two")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    warm_parent()  # ranks are forked anew after each kill
    failed = False
    for method in given.method or METHODS[:2]:
        began = time.monotonic()
        counts = tally(method, given.kills, given.seed)
        bad = given.kills - counts["old"] - counts["new"]
        failed |= bad > 0
        kinds = ("old", "new", "lost", "mixture", "wrong")
        shown = ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
        spent = time.monotonic() - began
        print(f"{method}: {given.kills} kills: {shown} ({spent:.0f} s)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
