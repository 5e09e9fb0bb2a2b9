"""Ranks on GPUs: where they run, what they share, what is said when one fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest
import torch

from pytest_cplife.launchers import Launcher, most_ranks
from pytest_cplife.launchers.base import WorldFailure
from pytest_cplife.mesh import MeshSpec
from tests.launchers_cuda import bodies

CP2 = MeshSpec.parse("cp=2")
PRODUCT = ("cuda", 6 * 7 * 5.0 + 6 * 5 * 7.0)


def test_ranks_share_gpus_under_gloo(gloo: Launcher, gpus: int) -> None:
    numbers = [rank % gpus for rank in range(3)]
    assert gloo.world(3).run(bodies.place) == [(f"cuda:{n}", n, "gloo") for n in numbers]
    assert gloo.world(3).run(bodies.total) == [6.0] * 3


@pytest.mark.parametrize("spec", ["cp=2", "dp=2,cp=2"])
def test_a_mesh_of_ranks_that_share_a_gpu(gloo: Launcher, spec: str) -> None:
    mesh = MeshSpec.parse(spec)
    for _ in range(2):
        assert gloo.world(mesh.world_size).run(bodies.product, mesh) == [PRODUCT] * mesh.world_size


def test_nccl_with_one_rank(nccl: Launcher) -> None:
    world = nccl.world(1)
    assert world.run(bodies.place) == [("cuda:0", 0, "nccl")]
    assert world.run(bodies.total) == [1.0]
    assert world.run(bodies.product, MeshSpec.parse("cp=1")) == [PRODUCT]
    assert world.notes == ()


def test_nccl_with_a_rank_per_gpu(nccl: Launcher, several: int) -> None:
    world = nccl.world(several)
    assert world.run(bodies.place) == [(f"cuda:{n}", n, "nccl") for n in range(several)]
    assert world.run(bodies.total) == [several * (several + 1) / 2] * several
    assert nccl.world(2).run(bodies.product, CP2) == [PRODUCT] * 2
    assert world.notes == ()


def test_more_ranks_than_gpus_are_not_to_be_had_from_nccl(gpus: int) -> None:
    found = most_ranks("processes", "cuda", "auto")
    assert found is not None and found[0] == gpus
    assert most_ranks("processes", "cuda", "gloo") is None


def test_random_numbers_of_the_gpu_start_anew_at_every_call(gloo: Launcher) -> None:
    first = gloo.world(2).run(bodies.draws)
    assert first[0] == first[1] and len(set(first[0])) == 3
    assert gloo.world(2).run(bodies.draws) == first


def test_snapshots_hold_the_random_stream_of_the_gpu(gloo: Launcher) -> None:
    for before, after, again in gloo.world(2).run(bodies.streams):
        assert before["cuda"] != after["cuda"]
        assert before == again
        assert {name: after[name] for name in after if name != "cuda"} == {
            name: before[name] for name in before if name != "cuda"
        }


def test_a_failing_rank_is_named_and_the_next_call_works(gloo: Launcher) -> None:
    world = gloo.world(2, "faults")
    with pytest.raises(WorldFailure) as caught:
        world.run(bodies.raises)
    assert caught.value.primary.headline() == "rank 1 raised: LookupError: the planted fault"
    with pytest.raises(WorldFailure) as caught:
        world.run(bodies.another_size)
    assert "[5]" in str(caught.value) and "[4]" in str(caught.value)
    with pytest.raises(WorldFailure) as caught:
        world.run(bodies.absent, timeout=10)
    assert caught.value.primary.rank == 1
    assert world.run(bodies.total) == [3.0] * 2


def test_what_fails_on_the_device_fails_the_call_that_did_it(gloo: Launcher) -> None:
    world = gloo.world(1, "faults")
    with pytest.raises(WorldFailure, match="device-side assert"):
        world.run(bodies.breaks_the_device)
    assert world.run(bodies.total) == [1.0]


def test_faults_under_nccl(nccl: Launcher, several: int) -> None:
    world = nccl.world(2, "faults")
    with pytest.raises(WorldFailure) as caught:
        world.run(bodies.raises)
    assert caught.value.primary.headline() == "rank 1 raised: LookupError: the planted fault"
    with pytest.raises(WorldFailure) as caught:
        world.run(bodies.absent, timeout=10)
    failure = caught.value
    assert failure.seconds < 30
    assert "nccl:all_reduce" in str(failure)
    assert world.run(bodies.total) == [3.0] * 2


def test_this_process_has_not_used_cuda(gloo: Launcher) -> None:
    assert torch.cuda.is_available(), "asking is allowed"
    assert gloo.world(2, "late").run(bodies.total) == [3.0] * 2
    assert not torch.cuda.is_initialized()
    # The driver opens it when it is initialised; counting devices does not.
    assert "/dev/nvidia-uvm" not in opened_files()


def opened_files() -> set[str]:
    names = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # that of the listing itself
            names.add(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    return names


def test_a_process_that_has_used_cuda_is_refused() -> None:
    script = (
        "import torch\n"
        "torch.zeros(1, device='cuda')\n"
        "from pytest_cplife.launchers import make_launcher\n"
        "make_launcher('processes', device='cuda')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "RuntimeError: the pytest process has initialised CUDA" in done.stderr
