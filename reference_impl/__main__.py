"""Train, stop, resume and compare: ``torchrun --nproc-per-node 4 -m pytest_cplife.reference_impl``.

Without torchrun it is a serial run. The report is the last thing printed, by rank 0.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from .agreement import gather, global_rank
from .plain import to_plain
from .report import Progress, lifecycle_report
from .topology import Topology
from .trainer import Trainer, TrainerConfig


def stop_and_go(topology: Topology, folder: Path, steps: int) -> tuple[Trainer, list[str]]:
    """Train `2 * steps` at once, and with a stop in the middle; names that differ. Collective."""
    config = TrainerConfig(rng_policy="restore")
    device = torch.device("cpu")
    whole = Trainer(config, topology, device, global_rank())
    bar = Progress(2 * steps, visible=global_rank() == 0)
    for done in range(1, 2 * steps + 1):
        bar.show(done, whole.train(1)[0])
        if done == steps:
            whole.save(folder / "stop.pt")
            whole.save_sharded(folder / "stop")
    differing: set[str] = set()
    wanted = to_plain(whole.model.state_dict())
    for kind in ("stop.pt", "stop"):
        resumed = Trainer(config, topology, device, global_rank())
        path = folder / kind
        (resumed.load if path.is_file() else resumed.load_sharded)(path)
        resumed.train(steps)
        found = to_plain(resumed.model.state_dict())
        differing |= {name for name in wanted if not torch.equal(wanted[name], found[name])}
    return whole, sorted(set().union(*gather(differing)))


def main() -> None:
    """Read the command line, start the ranks' group if torchrun started this, and report."""
    parser = argparse.ArgumentParser(prog="reference_impl", description=__doc__)
    parser.add_argument("--mesh", default="", help="such as dp=2,cp=2; default: all ranks cp")
    parser.add_argument("--steps", type=int, default=4, help="before and after the stop")
    parser.add_argument("--folder", type=Path, help="for the checkpoints, shared by the ranks")
    given = parser.parse_args()
    topology = Topology()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        dims = dict(part.split("=") for part in given.mesh.split(",") if part)
        dims = dims or {"cp": str(dist.get_world_size())}
        shape = tuple(int(size) for size in dims.values())
        topology = Topology(init_device_mesh("cpu", shape, mesh_dim_names=tuple(dims)))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(gather(str(given.folder or scratch))[0])
        run, differing = stop_and_go(topology, folder, given.steps)
        if global_rank() == 0:
            print(lifecycle_report(run, differing))
        gather(None)  # rank 0's folder outlives its readers
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
