"""What a process has once, every rank has to itself, across every hand-over."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_cplife.launchers.base import Launcher, Rank, World
from pytest_cplife.mesh import MeshSpec

Numbers = list[float]


def draw() -> Numbers:
    return [torch.rand(()).item(), float(np.random.normal()), np.random.random(), random.random()]


def draws(rank: Rank) -> Numbers:
    """Seeded per rank, drawn in turn with the other ranks: odd numbers of normal variates."""
    torch.manual_seed(rank.rank)
    np.random.seed(rank.rank)
    random.seed(rank.rank)
    numbers: Numbers = []
    for step in range(4):
        if step != rank.rank:
            numbers += draw()
        dist.barrier()
        numbers += [random.gauss(0, 1), torch.randn(3).sum().item()]
    return numbers


def unseeded(rank: Rank) -> Numbers:
    dist.barrier()
    return draw() + draw()


def other_generator(rank: Rank) -> Numbers:
    """A generator of another kind, and a change back to the usual one."""
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(rank.rank))
    numbers = []
    for _ in range(3):
        numbers.append(float(np.random.normal()))
        dist.barrier()
    np.random.set_bit_generator(usual)
    dist.barrier()
    return [*numbers, np.random.random()]


@pytest.mark.parametrize("body", [draws, unseeded, other_generator], ids=lambda b: b.__name__)
def test_random_streams_are_those_of_forked_ranks(
    body: Callable[[Rank], Numbers], threads: Launcher, processes: Launcher
) -> None:
    assert threads.world(4).run(body) == processes.world(4).run(body)


def test_streams_start_anew_at_every_call_and_pytest_keeps_its_own(four: World) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    expected = draw() + draw()
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    before = draw()
    assert four.run(unseeded) == four.run(unseeded)
    assert before + draw() == expected


def test_rank_variables(four: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "77")
    monkeypatch.setenv("MARK", "pytest's")

    def body(rank: Rank) -> tuple[str | None, ...]:
        os.environ["OWN"] = f"own {rank.rank}"
        if rank.rank == 1:
            del os.environ["MARK"]
        dist.barrier()
        names = (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "GROUP_RANK",
            "MASTER_ADDR",
        )
        return (*(os.environ[name] for name in names), os.environ.get("MARK"), os.environ["OWN"])

    for rank, values in enumerate(four.run(body)):
        mark = None if rank == 1 else "pytest's"
        expected = (str(rank), str(rank), "4", "4", "0", "127.0.0.1", mark, f"own {rank}")
        assert values == expected
    assert "rank 1: environment variable MARK had been changed" in four.notes
    assert os.environ["RANK"] == "77" and os.environ["MARK"] == "pytest's"
    assert "OWN" not in os.environ and "WORLD_SIZE" not in os.environ


def test_settings_are_each_ranks_own_and_gone_after_the_call(two: World, tmp_path: Path) -> None:
    def body(rank: Rank) -> tuple[object, ...]:
        if rank.rank == 1:
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            torch.set_grad_enabled(False)
            os.chdir(tmp_path)
        dist.barrier()
        dist.barrier()
        return (
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            Path.cwd() == tmp_path,
        )

    assert two.run(body) == [
        (torch.float32, False, True, False),
        (torch.float64, True, False, True),
    ]
    assert "rank 1: grad mode had been changed from True to False" in two.notes
    assert "rank 1: default dtype had been changed from torch.float32 to torch.float64" in two.notes
    assert torch.get_default_dtype() == torch.float32 and Path.cwd() != tmp_path

    def look(rank: Rank) -> tuple[torch.dtype, bool]:
        return torch.get_default_dtype(), torch.is_grad_enabled()

    assert two.run(look) == [(torch.float32, True)] * 2
    assert two.notes == ()


def test_inference_mode_left_on_costs_the_rank_its_thread(two: World) -> None:
    left_on = []

    def body(rank: Rank) -> None:
        left_on.append(torch.inference_mode())
        left_on[-1].__enter__()

    two.run(body)
    assert "rank 0: inference mode had been changed from False to True" in two.notes
    assert two.run(lambda rank: torch.is_inference_mode_enabled()) == [False, False]


def test_redirected_output_and_warning_filters(two: World) -> None:
    def body(rank: Rank) -> tuple[str, int]:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always" if rank.rank else "ignore")
            dist.barrier()
            print(f"I am {rank.rank}")
            warnings.warn("mine", UserWarning, stacklevel=1)
            dist.barrier()
        dist.barrier()
        return text.getvalue(), len(caught)

    before, filters = sys.stdout, list(warnings.filters)
    assert two.run(body) == [("I am 0\n", 0), ("I am 1\n", 1)]
    assert sys.stdout is before and list(warnings.filters) == filters


def test_global_hooks_run_on_the_rank_that_registered_them(two: World) -> None:
    def body(rank: Rank) -> tuple[int, int]:
        modules: list[nn.Module] = []
        steps: list[torch.optim.Optimizer] = []
        if rank.rank == 0:
            nn.modules.module.register_module_forward_hook(lambda m, i, o: modules.append(m))
            register_optimizer_step_post_hook(lambda o, args, kwargs: steps.append(o))
        dist.barrier()
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        dist.barrier()
        return len(modules), len(steps)

    assert two.run(body) == [(1, 1), (0, 0)]
    # Nor does one outlive the call.
    assert two.run(lambda rank: len(nn.modules.module._global_forward_hooks)) == [0, 0]


def parallel_loss(rank: Rank) -> Tensor:
    """The context edits a table of the process, and the ranks leave it one after the other."""
    mesh = rank.mesh(MeshSpec.parse("tp=2"))
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(4, 6, generator=generator)
    logits = distribute_tensor(scores, mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        nn.functional.cross_entropy(logits, torch.tensor([0, 5, 2, 3])).backward()
    assert isinstance(logits.grad, DTensor)
    return logits.grad.to_local()


def test_loss_parallel_is_each_ranks_own(threads: Launcher, processes: Launcher) -> None:
    ours, theirs = threads.world(2).run(parallel_loss), processes.world(2).run(parallel_loss)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
