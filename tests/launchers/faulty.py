"""SPMD bodies with one thing wrong, on rank 1 unless they say otherwise."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from pytest_cplife.launchers.base import Rank


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def _reduce(size: int = 4) -> None:
    dist.all_reduce(torch.ones(size))


def raises(rank: Rank) -> None:
    _reduce()
    if rank.rank == 1:
        time.sleep(0.3)  # the others are waiting by now
        print("just before the fault")
        raise Unpicklable("the planted fault")
    _reduce()


def fails(rank: Rank, text: str) -> None:
    raise RuntimeError(text)


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, for machines without one."""

    device = property(lambda self: torch.device("cuda", 0))  # type: ignore[assignment]


def returns_what_is_on_the_gpu(rank: Rank) -> object:
    return {"loss": [torch.ones(2), torch.ones(2).as_subclass(OnGpu)]}


def exits(rank: Rank, status: int) -> None:
    if rank.rank == 1:
        time.sleep(0.3)
        sys.exit(status)
    _reduce()


def leaves(rank: Rank) -> None:
    _reduce()
    if rank.rank == 1:
        os._exit(0)
    _reduce()


def _later(act: object) -> None:
    def wait() -> None:
        time.sleep(0.2)
        act()  # type: ignore[operator]

    threading.Thread(target=wait, daemon=True).start()


def killed(rank: Rank) -> None:
    """SIGKILL while every rank is inside a collective: rank 0 never comes."""
    if rank.rank == 1:
        _later(lambda: os.kill(os.getpid(), signal.SIGKILL))
    if rank.rank == 0:
        time.sleep(600)
    _reduce()


def segfaults(rank: Rank) -> None:
    if rank.rank == 1:
        _later(lambda: ctypes.string_at(0))
    if rank.rank == 0:
        time.sleep(600)
    _reduce()


def sleeps(rank: Rank) -> None:
    if rank.rank == 1:
        time.sleep(600)
    _reduce()


def spins_without_letting_go(rank: Rank) -> None:
    """Sleep in C with the interpreter locked, so that no thread of the rank can answer."""
    if rank.rank == 1:
        ctypes.PyDLL(None).sleep(600)
    _reduce()


def returns_early(rank: Rank) -> None:
    if rank.rank != 1:
        _reduce()


def another_collective(rank: Rank) -> None:
    _reduce()
    if rank.rank == 1:
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_gather([torch.ones(4) for _ in range(rank.world_size)], torch.ones(4))


def another_shape(rank: Rank) -> None:
    _reduce()
    _reduce(5 if rank.rank == 1 else 4)


def another_dtype(rank: Rank) -> None:
    _reduce()
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank.rank == 1 else torch.float32))


def unwaited_by_the_first(rank: Rank, seconds: float) -> None:
    """Rank 0 is back long before the others come to what it has started."""
    if rank.rank != 0:
        time.sleep(seconds)
    dist.all_reduce(torch.ones(4), async_op=True)


def same_bytes_other_dtype(rank: Rank) -> None:
    """gloo moves the bytes and says nothing."""
    dist.broadcast(torch.ones(4, dtype=torch.int32 if rank.rank == 1 else torch.float32), 0)


def opposite_order(rank: Rank) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if rank.rank == 0 else reversed(groups):
        if rank.rank < 2:
            dist.all_reduce(torch.ones(4), group=group)


def group_without_me(rank: Rank) -> None:
    if rank.rank != 1:
        dist.new_group([0, 1])


def never_sends(rank: Rank) -> None:
    if rank.rank == 0:
        dist.recv(torch.ones(4), 1)


def outstanding(rank: Rank) -> None:
    if rank.rank == 1:
        dist.all_reduce(torch.ones(4), async_op=True)


def unwaited(rank: Rank) -> None:
    """Every rank starts it and none waits: it completes by itself."""
    dist.all_reduce(torch.ones(4), async_op=True)


def leaks(rank: Rank, kind: str) -> None:
    if kind == "group":
        dist.new_group(list(range(rank.world_size)))
    elif kind == "dtype":
        torch.set_default_dtype(torch.float64)
    elif kind == "grad":
        torch.set_grad_enabled(False)
    elif kind == "environment":
        os.environ["CPLIFE_LEAK"] = "1"
        del os.environ["RANK"]
    elif kind == "random":
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
    elif kind == "deterministic":
        torch.use_deterministic_algorithms(True)
    elif kind == "threads":
        torch.set_num_threads(2)
    elif kind == "path":
        sys.path.insert(0, "/nowhere")
    elif kind == "folder":
        os.chdir("/")
    elif kind == "warnings":
        import warnings

        warnings.simplefilter("error")


def state(rank: Rank) -> tuple[object, ...]:
    """All that `leaks` may have changed."""
    import warnings

    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        os.environ.get("CPLIFE_LEAK"),
        os.environ.get("RANK"),
        random.random(),
        float(np.random.rand()),
        float(torch.rand(())),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        tuple(sys.path),
        str(Path.cwd()),
        tuple(map(str, warnings.filters)),
    )


def starts_a_child_and_hangs(rank: Rank, folder: Path) -> None:
    """What a rank has started must not outlive it."""
    child = subprocess.Popen(["sleep", "600"])
    (folder / f"{rank.rank}").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def says_its_pid_and_waits(rank: Rank, folder: Path) -> None:
    (folder / f"{rank.rank}").write_text(str(os.getpid()))
    time.sleep(600)


def slow(rank: Rank, act: str, seconds: float) -> float:
    """Healthy, and busy or idle on rank 1 for longer than two looks are apart."""
    tensor = torch.full((4,), float(rank.rank))
    end = time.monotonic() + seconds
    if act == "sleep" and rank.rank == 1:
        time.sleep(seconds)
    if act == "compute" and rank.rank == 1:
        while time.monotonic() < end:
            torch.ones(400, 400) @ torch.ones(400, 400)
    if act == "compute inside torch":
        # With a pending collective that nobody else has entered, in a frame of torch's own: only
        # that it moves tells it from a deadlock.
        group = dist.new_group([0, 1, 2])
        if rank.rank == 1:
            early = dist.all_reduce(torch.ones(4), group=group, async_op=True)
            while time.monotonic() < end:
                torch.nn.functional.dropout(torch.ones(4_000_000))
        dist.barrier()
        if rank.rank != 1:
            early = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        early.wait()
    work = dist.all_reduce(tensor, async_op=True)
    if act == "sleep beside" and rank.rank == 2:
        time.sleep(seconds)
    work.wait()
    return float(tensor[0])


def connections(pid: int) -> int:
    """How many groups of gloo's a process holds open: each has a thread for its connections."""
    names = [(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()]
    return names.count("gloo_tcp_loop")


def leaves_a_group_to_the_others(rank: Rank) -> tuple[int, int]:
    """Rank 0 is back while rank 1 has still to do with the group that both have made."""
    pids = torch.zeros(rank.world_size, dtype=torch.int64)
    pids[rank.rank] = os.getpid()
    dist.all_reduce(pids)
    dist.new_group([0, 1])
    if rank.rank == 1:
        time.sleep(0.5)
    return connections(int(pids[0])), connections(int(pids[1]))
