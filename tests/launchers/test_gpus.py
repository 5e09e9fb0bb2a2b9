"""How GPUs are divided among workers; the numbers alone, no GPU is needed."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from pytest_cplife.launchers import Launcher, most_ranks
from pytest_cplife.launchers.base import WorldFailure
from pytest_cplife.launchers.gpus import share_of, stay_forkable, take_share, visible_devices
from tests.launchers import faulty


@pytest.mark.parametrize(("count", "workers"), list(itertools.product(range(9), range(1, 6))))
def test_every_device_has_one_worker(count: int, workers: int) -> None:
    devices = [f"GPU-{number}" for number in range(count)]
    shares = [share_of(devices, worker, workers) for worker in range(workers)]
    if count == 0 or count >= workers:
        assert [device for share in shares for device in share] == devices
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:
        assert all(len(share) == 1 for share in shares)
        assert {device for share in shares for device in share} == set(devices)


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ("", ()),
        ("3", ("3",)),
        ("2, 0", ("2", "0")),
        ("1,-1,0", ("1",)),
        ("GPU-a,MIG-b", ("GPU-a", "MIG-b")),
    ],
)
def test_the_users_choice_is_what_is_divided(given: str, devices: tuple[str, ...]) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": given}) == devices


def test_the_share_is_told_to_cuda() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6", "OTHER": "kept"}
    take_share(environ, 1, 2)
    assert environ == {"CUDA_VISIBLE_DEVICES": "5,6", "OTHER": "kept"}


@pytest.mark.parametrize(
    ("launcher", "backend", "limit"),
    [("processes", "auto", 2), ("processes", "nccl", 2), ("processes", "gloo", None)],
)
def test_nccl_has_as_many_ranks_as_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch, launcher: str, backend: str, limit: int | None
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = most_ranks(launcher, "cuda", backend)
    assert (None if found is None else found[0]) == limit
    if found is not None:
        assert "of 2 GPUs here (--cplife-backend=gloo lets ranks share one)" in found[1]


@pytest.mark.parametrize("launcher", ["processes", "threads", "torchrun"])
def test_no_gpu_is_said_before_any_rank_is_started(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match="there is no GPU to be seen by torch"):
        most_ranks(launcher, "cuda", "auto")
    assert most_ranks("processes", "cpu", "gloo") is None


def test_asking_whether_there_is_a_gpu_does_not_use_it() -> None:
    environ: dict[str, str] = {}
    stay_forkable(environ)
    assert environ == {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    chosen = {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
    stay_forkable(chosen)
    assert chosen == {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"}


def test_the_warm_up_computes_no_gradients() -> None:
    """On a machine with a GPU none of the ranks could compute any after that."""
    script = (
        "import torch\n"
        "from torch.autograd import graph\n"
        "def refuse(*args, **options):\n"
        "    raise AssertionError('a backward in the pytest process')\n"
        "torch.autograd.backward = torch.autograd._engine_run_backward = refuse\n"
        "graph._engine_run_backward = refuse\n"
        "from pytest_cplife.launchers.warm import warm_parent\n"
        "warm_parent()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("Cannot re-initialize CUDA in forked subprocess. To use", "PYTORCH_NVML_BASED_CUDA_CHECK"),
        ("Unable to handle autograd's threading in combination with fork-based", "gradients"),
    ],
)
def test_what_a_rank_suffers_from_its_parent_is_explained(
    launcher: Launcher, error: str, hint: str
) -> None:
    with pytest.raises(WorldFailure) as caught:
        launcher.world(1).run(faulty.fails, error)
    assert error in caught.value.primary.message
    assert f"the pytest process had {'used CUDA' if 'CUDA' in hint else 'computed'}" in str(
        caught.value
    )
    assert hint in caught.value.primary.message


def test_a_result_on_the_gpu_stays_out_of_the_pytest_process(launcher: Launcher) -> None:
    with pytest.raises(WorldFailure) as caught:
        launcher.world(1).run(faulty.returns_what_is_on_the_gpu)
    assert caught.value.primary.kind == "unserialisable"
    told = "the result, a dict, cannot be sent: there is a tensor on cuda:0 in it"
    assert told in caught.value.primary.message and "tensor.cpu()" in caught.value.primary.message
