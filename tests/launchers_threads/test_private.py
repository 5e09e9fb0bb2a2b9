"""What the launcher needs of torch beyond its public API is checked before anything is changed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

import pytest_cplife.launchers.threads as package
from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import World
from pytest_cplife.launchers.threads import private


def test_a_torch_that_lacks_something_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(distributed_c10d, "rendezvous")
    monkeypatch.setattr(torch, "__version__", "9.9")
    with pytest.raises(RuntimeError) as caught:
        make_launcher("threads")
    text = str(caught.value)
    assert "torch 9.9 does not have: torch.distributed.distributed_c10d.rendezvous (so that" in text
    assert f"tested with torch {private.TESTED}" in text
    assert "'processes' needs none of this" in text


def test_the_torch_of_this_run_is_one_that_was_tested() -> None:
    assert torch.__version__.startswith(private.TESTED)


@pytest.mark.parametrize("backend", ["nccl", "mpi"])
def test_another_backend_is_refused(backend: str) -> None:
    with pytest.raises(ValueError, match=f"not on '{backend}': accepted are 'auto' and 'gloo'"):
        make_launcher("threads", backend=backend)


def test_nothing_stays_replaced_after_a_call(two: World) -> None:
    def replaced() -> list[object]:
        return [
            distributed_c10d.ProcessGroupGloo,
            distributed_c10d.rendezvous,
            distributed_c10d._world,
            DeviceMesh.__init__,
        ]

    before = replaced()
    inside = two.run(lambda rank: replaced())
    assert not any(a is b for ranks in inside for a, b in zip(ranks, before, strict=True))
    assert all(a is b for a, b in zip(replaced(), before, strict=True))
    assert not dist.is_initialized()


def test_a_group_of_pytests_own_survives(two: World) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert two.run(lambda rank: dist.get_world_size()) == [2, 2]
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert dist.get_world_size() == 1
        assert distributed_c10d._resolve_process_group(dist.group.WORLD.group_name).size() == 1
    finally:
        dist.destroy_process_group()


def test_private_names_are_used_in_one_module_only() -> None:
    for path in Path(package.__file__).parent.glob("*.py"):
        if path.name == "private.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert not (module.startswith("torch") and "._" in module), path.name
                assert not module.startswith("torch") or not any(
                    alias.name.startswith("_") for alias in node.names
                ), path.name
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                owner = ast.unparse(node.value)
                assert owner.split(".")[0] not in ("torch", "dist", "c10d"), f"{path.name}: {owner}"
