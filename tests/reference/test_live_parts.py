"""Live objects that a load or an exchange of weights must leave whole, on the right device."""

from __future__ import annotations

import copy
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_cplife.reference_impl import arena, dcp_metadata
from pytest_cplife.reference_impl.checkpoint import stage_model
from pytest_cplife.reference_impl.ema import Ema
from pytest_cplife.reference_impl.light import load_parameters, save_parameters
from pytest_cplife.reference_impl.optimizer_state import export_optimizer, stage_optimizer
from pytest_cplife.reference_impl.sharded import DCP
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from .ranks import run_ranks


def test_an_exchange_that_fails_midway_leaves_the_training_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ema = Ema(model, lambda update: 0.5)
    before = copy.deepcopy(model.state_dict())
    for value in ema.shadow.values():
        value.zero_()
    ema.shadow["1.weight"] = torch.zeros(3, 3)
    with pytest.raises(RuntimeError), ema.weights():
        pass
    assert not ema.swapped
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("flag", ["capturable", "fused"])
def test_a_step_count_is_where_its_kernel_looks_for_it(flag: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved = export_optimizer(model, optimizer)
    model.to("meta")  # any device that is not the CPU
    fresh = torch.optim.AdamW(model.parameters())
    staged = stage_optimizer(model, fresh, saved).state[model.weight]
    assert (staged["step"].device.type, staged["exp_avg"].device.type) == ("cpu", "meta")
    saved["param_groups"][0][flag] = True
    assert stage_optimizer(model, fresh, saved).state[model.weight]["step"].is_meta


class Counting(nn.Linear):
    """Has state that is no tensor, or one of a size that changes, as scaling factors have."""

    def __init__(self, count: Any) -> None:
        super().__init__(2, 2)
        self.count = count

    def get_extra_state(self) -> Any:
        return self.count

    def set_extra_state(self, state: Any) -> None:
        self.count = state


def test_extra_state_is_the_modules_own_business(tmp_path: Path) -> None:
    save_parameters(Counting({"seen": 3}), tmp_path / "light.pt")
    model = Counting(None)
    load_parameters(model, tmp_path / "light.pt")
    assert model.count == {"seen": 3}
    DCP.save({"model": Counting(torch.ones(4))}, tmp_path / "sharded")
    model = Counting(torch.zeros(0))
    DCP.load({"model": model}, tmp_path / "sharded")
    assert torch.equal(model.count, torch.ones(4))


def test_a_value_that_is_no_tensor_is_found_before_anything_is_changed() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="'bias': a float"):
        stage_model(model, {**model.state_dict(), "bias": 0.5})


def off_mesh(path: Path) -> Tensor:
    model = nn.Linear(2, 2, bias=False)
    mesh = DeviceMesh("cpu", [1])
    model.weight = nn.Parameter(distribute_tensor(torch.full((2, 2), 7.0), mesh, [Shard(0)]))
    save_parameters(model, path)
    with torch.no_grad():
        model.weight.to_local().zero_()
    load_parameters(model, path)
    return model.weight.to_local().detach()


def test_parameters_reach_a_mesh_that_rank_0_is_not_on(tmp_path: Path) -> None:
    outside, local = run_ranks(2, off_mesh, tmp_path / "light.pt")
    assert outside.numel() == 0 and local.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_what_a_load_keeps_does_not_keep_the_model_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[weakref.ref[Any]] = []
    block = arena._block

    def noted(size: int) -> Any:
        made = block(size)
        blocks.append(weakref.ref(made))
        return made

    monkeypatch.setattr(arena, "_block", noted)
    model = nn.Linear(1024, 1024)
    DCP.save({"model": model, "best": torch.ones(2)}, tmp_path / "saved")
    state: dict[str, Any] = {"model": model, "best": None}
    DCP.load(state, tmp_path / "saved")
    assert state["best"].tolist() == [1.0, 1.0]
    assert [made() for made in blocks] == [None]


@pytest.mark.parametrize("dim", [0, 1])
def test_cuts_are_compared_with_their_neighbours_only(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    meet = dcp_metadata._meet
    monkeypatch.setattr(dcp_metadata, "_meet", lambda *boxes: calls.append(1) or meet(*boxes))
    whole = torch.empty(200, 200, device="meta")
    cuts = [
        ChunkStorageMetadata(torch.Size([0, at] if dim else [at, 0]), part.size())
        for at, part in enumerate(whole.split(1, dim))
    ]
    entry = TensorStorageMetadata(TensorProperties(), whole.size(), cuts)
    dcp_metadata._check_tiling("w", entry)
    assert len(calls) < len(cuts)
    entry.chunks[7] = entry.chunks[8]
    with pytest.raises(ValueError, match="twice"):
        dcp_metadata._check_tiling("w", entry)
