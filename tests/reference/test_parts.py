"""The smaller parts: wrapping, placeholders, gradients, streams, retention, the report."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_cplife.reference_impl import atomic, folder
from pytest_cplife.reference_impl.gradients import clip_gradients, gradient_norm, reduce_gradients
from pytest_cplife.reference_impl.model import ModelConfig, build_model
from pytest_cplife.reference_impl.placeholder import Placeholder, replace_with_placeholders
from pytest_cplife.reference_impl.report import Progress, lifecycle_report
from pytest_cplife.reference_impl.rng import get_streams, seed_streams, set_streams, stream_seed
from pytest_cplife.reference_impl.topology import Topology, require_process_group
from pytest_cplife.reference_impl.wrap import validate, wrap
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from pytest_cplife.mesh import MeshSpec

from . import ranks
from .ranks import run_ranks, run_serial, topology, trainer


def wrapping() -> None:
    serial = build_model(ModelConfig())
    wrapped = wrap(build_model(ModelConfig()), topology("fsdp=2"), "cpu", ("aux_head",))
    assert list(wrapped.state_dict()) == list(serial.state_dict())
    assert [n for n, _ in wrapped.named_parameters()] == [n for n, _ in serial.named_parameters()]
    assert wrapped.get_parameter("head.weight") is wrapped.get_parameter("embedding.weight")
    for name, parameter in wrapped.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.full_tensor(), serial.get_parameter(name))
        assert parameter.requires_grad == serial.get_parameter(name).requires_grad
    with pytest.raises(NotImplementedError, match="'aux_head'"):
        wrapped.get_submodule("aux_head")(torch.zeros(1, 12))
    mesh = topology("fsdp=2").mesh
    assert mesh is not None
    wrapped.register_parameter("late", nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match="'late' is a plain"):
        validate(wrapped, mesh)
    with pytest.raises(ValueError, match=r"'embedding.weight'.*meta device"):
        wrap(build_model(ModelConfig()).to("meta"), topology("fsdp=2"), "cpu")
    with pytest.raises(ValueError, match="heads do not divide over tp=2"):
        config = ModelConfig(heads=3)
        wrap(build_model(config), Topology(ranks._here[0].mesh(MeshSpec.parse("tp=2"))), "cpu")
    with pytest.raises(ValueError, match=r"\['pp'\]: known are dp, fsdp, cp, tp"):
        Topology(ranks._here[0].mesh(MeshSpec.parse("pp=2")))


def test_wrapping_keeps_names_order_values_and_ties_and_refuses_what_does_not_fit() -> None:
    run_ranks(2, wrapping)


def test_no_process_group_fails_at_once() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        require_process_group()


def test_placeholders_are_found_by_their_serial_keys_at_any_depth() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sub = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            self.register_buffer("scratch", torch.zeros(1), persistent=False)

    model = nn.ModuleDict({"a": nn.Linear(1, 1), "b": Inner(), "c": nn.Linear(1, 1)})
    keys = list(model.state_dict())
    replace_with_placeholders(model, ["b"])
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_children()] == ["a", "b", "c"]
    assert not any(parameter.requires_grad for parameter in model["b"].parameters())
    with pytest.raises(NotImplementedError, match=r"'b.sub.0' .Linear."):
        model.get_submodule("b.sub.0")(torch.zeros(1))
    assert isinstance(model["b"], Placeholder)


def gradients() -> None:
    mesh = topology("dp=2,fsdp=2").mesh
    assert mesh is not None
    rank = mesh.get_rank()
    parameters = []
    for placements in ((Replicate(), Replicate()), (Replicate(), Shard(0))):
        value = distribute_tensor(torch.zeros(5), mesh, placements)
        parameter = nn.Parameter(value)
        local = torch.full_like(value.to_local(), float(rank + 1))
        grads = [Partial() if p.is_replicate() else p for p in placements]
        parameter.grad = DTensor.from_local(
            local, mesh, grads, run_check=False, shape=torch.Size([5]), stride=(1,)
        )
        parameters.append(parameter)
    reduce_gradients(parameters)
    first, second = (p.grad for p in parameters)
    assert isinstance(first, DTensor) and isinstance(second, DTensor)
    assert all(placement.is_replicate() for placement in first.placements)
    assert first.to_local().tolist() == [10.0] * 5
    # Ranks 0 and 2 hold the rows 0 to 2, ranks 1 and 3 the rows 3 and 4.
    assert second.full_tensor().tolist() == [4.0] * 3 + [6.0] * 2
    wanted = (5 * 100 + 3 * 16 + 2 * 36) ** 0.5
    assert gradient_norm(parameters) == pytest.approx(wanted)
    assert clip_gradients(parameters, 1.0) == pytest.approx(wanted)
    assert gradient_norm(parameters) == pytest.approx(1.0)
    for parameter in parameters:
        parameter.grad = None
    with pytest.raises(RuntimeError, match="lost its graph"):
        clip_gradients(parameters, 1.0)


def test_gradients_are_summed_measured_clipped_and_missed() -> None:
    run_ranks(4, gradients)


def detached() -> None:
    run = trainer("cp=2")
    forward = run.model.forward
    run.model.forward = lambda *a: forward(*a).detach().requires_grad_()
    with pytest.raises(RuntimeError, match="lost its graph"):
        run.train(1)
    assert run.global_step == 0


def test_a_loss_without_a_graph_is_refused_before_the_step() -> None:
    run_ranks(2, detached)


def test_streams_of_neighbours_do_not_meet() -> None:
    seeds = {
        stream_seed(seed, rank, epoch, step)
        for seed in (0, 1)
        for rank in range(16)
        for epoch in range(4)
        for step in range(64)
    }
    assert len(seeds) == 2 * 16 * 4 * 64
    assert stream_seed(0, 1, 0, 0) != stream_seed(0, 0, 1 << 32, 0)
    seed_streams(0, 1, 2, 3)
    state, first = get_streams(), torch.rand(3)
    set_streams(state)
    assert torch.equal(torch.rand(3), first)


def checkpoint(path: Path) -> None:
    written = atomic.begin(path)
    (written / "data").write_bytes(path.name.encode())
    atomic.publish(written, path, atomic.seal([written / "data"]))


def test_retention_keeps_the_newest_the_pointed_and_the_protected(tmp_path: Path) -> None:
    for number in (1, 2, 9, 10, 11):
        checkpoint(tmp_path / f"step-{number}")
    folder.point_to(tmp_path, "step-2")
    (tmp_path / "step-11" / "data").write_bytes(b"cut")
    removed = folder.retain(tmp_path, keep=1, protect=[tmp_path / "step-1"])
    assert [path.name for path in removed] == ["step-9"]
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {"step-1", "step-2", "step-10", "step-11"}
    assert folder.latest(tmp_path) == tmp_path / "step-2"
    (tmp_path / "step-2" / "data").unlink()
    assert folder.latest(tmp_path) == tmp_path / "step-10"


def test_a_replacement_killed_between_its_renames_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    checkpoint(path)
    path.rename(tmp_path / ".step-1.old-x")
    checkpoint(tmp_path / "fresh")
    (tmp_path / "fresh").rename(tmp_path / ".step-1.new-y")
    assert folder.latest(tmp_path) is None  # no name to look under
    atomic.recover(path)
    assert (path / "data").read_bytes() == b"fresh"
    checkpoint(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-1"]
    assert json.loads((path / atomic.MANIFEST).read_text())["files"]["data"]["size"] == 6


def report() -> Any:
    run = trainer("fsdp=2")
    return lifecycle_report(run, []), lifecycle_report(run, None), lifecycle_report(run, ["x"])


def test_the_report_says_what_a_reader_needs() -> None:
    fine, untried, bad = run_ranks(2, report)[0]
    assert "mesh fsdp=2" in fine and "aux_head" in fine and "bitwise equal" in fine
    assert "not tried" in untried
    assert "1 tensors differ, first 'x'" in bad


def test_the_bar_is_for_terminals_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        Progress(2, visible=True, stream=stream).show(1, 0.5)
    assert "step 1/2 loss 0.5000" in terminal.getvalue()
    assert log.getvalue() == ""


def frozen_and_unused() -> None:
    run = trainer("")
    before = {k: v.clone() for k, v in run.model.state_dict().items()}
    run.train(2)
    after = run.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    still = {"prior", "mask_token", "aux_head.weight", "aux_head.bias", "positions"}
    assert moved == before.keys() - still


def test_frozen_and_unused_parameters_stay_and_all_others_move() -> None:
    run_serial(frozen_and_unused)
