"""The plain file: portable, checked, all or nothing; its conversion and its small sibling."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.agreement import CheckpointError
from pytest_cplife.reference_impl.checkpoint import save_plain, write_file
from pytest_cplife.reference_impl.convert import plain_to_sharded, sharded_to_plain
from pytest_cplife.reference_impl.light import load_parameters, save_parameters
from pytest_cplife.reference_impl.model import ModelConfig, build_model
from pytest_cplife.reference_impl.plain import realign, to_plain
from pytest_cplife.reference_impl.skeleton import split
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from .ranks import differences, full_state, local_state, run_ranks, run_serial, topology, trainer

Pair = namedtuple("Pair", "one two")


@dataclasses.dataclass(frozen=True)
class Frozen:
    tensor: Tensor
    name: str = "kept"


def nested() -> None:
    mesh = topology("dp=2,cp=2").mesh
    assert mesh is not None
    whole = torch.arange(35.0).reshape(7, 5)
    cut = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    base = torch.arange(1000.0)
    state = OrderedDict(a=cut, b=cut)
    state._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]
    bag: defaultdict[str, Any] = defaultdict(list, x=[cut, {"y": (cut, "text")}])
    tree = {"state": state, "pair": Pair(cut, 3), "bag": bag, "frozen": Frozen(cut), "v": base[:3]}
    plain = to_plain(tree)
    assert type(plain["state"]) is OrderedDict
    assert vars(plain["state"])["_metadata"] == {"": {"version": 2}}
    assert plain["state"]["a"] is plain["state"]["b"]
    assert type(plain["pair"]) is Pair and plain["pair"].two == 3
    assert plain["bag"].default_factory is list and plain["bag"]["x"][1]["y"][1] == "text"
    assert plain["frozen"].name == "kept"
    for leaf in (plain["state"]["a"], plain["pair"].one, plain["bag"]["x"][1]["y"][0]):
        assert type(leaf) is Tensor and torch.equal(leaf, whole)
    assert torch.equal(plain["frozen"].tensor, whole)
    assert plain["v"].untyped_storage().nbytes() == 12
    back = realign(plain, tree)
    for leaf in (back["state"]["a"], back["pair"].one, back["frozen"].tensor):
        assert isinstance(leaf, DTensor)
        assert leaf.placements == cut.placements and leaf.device_mesh == mesh
        assert torch.equal(leaf.to_local(), cut.to_local())
    other = distribute_tensor(torch.zeros(7, 5), mesh, [Replicate(), Shard(0)])
    assert torch.equal(realign(cut, other).full_tensor(), whole)
    with pytest.raises(ValueError, match="expected"):
        realign({"a": torch.zeros(5, 7)}, {"a": cut})


def test_every_dtensor_in_any_nesting_becomes_plain_and_back() -> None:
    run_ranks(4, nested)


def transposed() -> None:
    mesh = topology("dp=2,cp=2").mesh
    assert mesh is not None
    whole = torch.arange(35.0).reshape(7, 5)
    template = distribute_tensor(torch.zeros(5, 7), mesh, [Shard(1), Shard(0)]).t()
    assert template.placements == (Shard(0), Shard(1)) and template.stride() == (1, 7)
    for value in (
        whole,
        distribute_tensor(whole, mesh, template.placements),
        distribute_tensor(whole, mesh, [Replicate(), Shard(0)]),
        distribute_tensor(whole.t().contiguous().t(), mesh, template.placements),
    ):
        back = realign(value, template)
        assert back.stride() == (1, 7) and back.placements == template.placements
        local = back.to_local()
        assert local.stride() == template.to_local().stride()
        assert torch.equal(back.full_tensor(), whole)
        # What comes back is nobody else's.
        local.zero_()
        assert torch.equal(value.full_tensor() if isinstance(value, DTensor) else value, whole)


def test_stride_is_that_of_the_template() -> None:
    run_ranks(4, transposed)


LAYOUTS: tuple[tuple[Placement, Placement], ...] = (
    (Shard(0), Shard(1)),
    (Shard(0), Shard(0)),
    (Shard(1), Shard(0)),
    (Replicate(), Shard(0)),
    (Shard(1), Replicate()),
    (Replicate(), Replicate()),
)


def one_rank() -> None:
    mesh = topology("dp=2,cp=2").mesh
    assert mesh is not None
    for shape in ((7, 5), (1, 3), (2, 9), (0, 4)):
        whole = torch.rand(shape, generator=torch.Generator().manual_seed(3))
        for placements in LAYOUTS:
            cut = distribute_tensor(whole, mesh, placements)
            for rank in (0, 3):
                got = to_plain({"t": cut, "plain": whole}, only=rank)
                if dist.get_rank() == rank:
                    assert torch.equal(got["t"], whole), (shape, placements)
                    assert torch.equal(got["plain"], whole)
                else:
                    assert got == {"t": None, "plain": None}


def test_one_rank_gets_the_full_tensor_from_any_layout() -> None:
    run_ranks(4, one_rank)


def save(spec: str, path: Path, sharded: bool = False) -> dict[str, Tensor]:
    run = trainer(spec)
    run.train(2)
    run.extra["note"] = Frozen(torch.ones(1))
    (run.save_sharded if sharded else run.save)(path)
    return full_state(run)


def load(spec: str, path: Path, sharded: bool = False) -> dict[str, Tensor]:
    run = trainer(spec)
    (run.load_sharded if sharded else run.load)(path)
    assert isinstance(run.extra["note"], Frozen)
    assert run.global_step == 2
    return full_state(run)


def save_first(path: Path) -> None:
    run = trainer("fsdp=2")
    run.train(1)
    run.save(path)


def test_the_file_needs_no_group_and_none_of_this_package(tmp_path: Path) -> None:
    run_ranks(2, save_first, tmp_path / "alone.pt")
    code = (
        "import sys, torch; p = torch.load(sys.argv[1], map_location='cpu', weights_only=True);"
        "assert all(type(v) is torch.Tensor for v in p['model'].values());"
        "assert p['model']['head.weight'].data_ptr() == p['model']['embedding.weight'].data_ptr();"
        "assert not any(m.startswith('pytest_cplife') for m in sys.modules);"
        "print(p['global_step'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "alone.pt")], capture_output=True, text=True
    )
    assert done.stdout.strip() == "1", done.stderr


def test_conversion_both_ways_keeps_every_value(tmp_path: Path) -> None:
    wanted = run_ranks(2, save, "fsdp=2", tmp_path / "sharded", True)[0]
    sharded_to_plain(tmp_path / "sharded", tmp_path / "plain.pt")
    run_serial(plain_to_sharded, tmp_path / "plain.pt", tmp_path / "again")
    assert differences(run_serial(load, "", tmp_path / "plain.pt"), wanted) == []
    for state in run_ranks(2, load, "cp=2", tmp_path / "again", True):
        assert differences(state, wanted) == []


def refuse(folder: Path) -> None:
    """What damages a plain file, and that a load that fails has changed nothing."""
    run = trainer("fsdp=2")
    run.train(1)
    good, path = folder / "good.pt", folder / "bad.pt"
    run.save(good)
    run.train(1)
    before = local_state(run)
    content = good.read_bytes()

    def attempt(message: str) -> None:
        dist.barrier()
        with pytest.raises(CheckpointError, match=message) as caught:
            run.load(path)
        assert str(path) in str(caught.value)
        assert differences(local_state(run), before) == [] and run.global_step == 2
        dist.barrier()

    def write(damaged: bytes) -> None:
        if dist.get_rank() == 0:
            path.write_bytes(damaged)

    flipped = bytearray(content)
    saved = torch.load(good, weights_only=True)
    needle = saved["model"]["blocks.1.attention.qkv.weight"].numpy().tobytes()
    flipped[content.index(needle) + 40] ^= 1
    write(bytes(flipped))
    attempt("checksum")
    write(content[: len(content) // 2])
    attempt("cannot load")
    changes: tuple[tuple[Callable[[Any], object], str], ...] = (
        (lambda p: p["model"].pop("scale"), "missing 'scale'"),
        (lambda p: p["model"].update(extra=torch.ones(1)), "unexpected 'extra'"),
        (lambda p: p["model"].update(scale=torch.ones(2)), r"'scale': shape \(2,\)"),
        (lambda p: p["model"].update(scale=torch.ones(1).double()), "'scale': dtype"),
        (lambda p: p["optimizers"][0]["param_groups"][0]["params"].pop(), "are not in the file"),
        (
            lambda p: p["optimizers"][0]["state"]["scale"].update(exp_avg=torch.ones(3)),
            "'exp_avg' of 'scale' has shape",
        ),
        (lambda p: p["ema"]["shadow"].update(scale=torch.ones(2)), "average of 'scale'"),
        (lambda p: p.pop("global_step"), "global_step"),
    )
    for change, message in changes:
        payload = torch.load(good, weights_only=True)
        change(payload)
        if dist.get_rank() == 0:
            write_file(path, payload)
        attempt(message)
    own = folder / f"rank{dist.get_rank()}.pt"
    write_file(own, {**torch.load(good, weights_only=True), "note": dist.get_rank()})
    with pytest.raises(CheckpointError, match="different content"):
        run.load(own)
    run.load(good)
    assert run.global_step == 1


def test_a_load_that_fails_names_the_file_on_all_ranks_and_changes_nothing(tmp_path: Path) -> None:
    run_ranks(2, refuse, tmp_path)


def transfer(folder: Path) -> None:
    run = trainer("fsdp=2")
    donor = build_model(ModelConfig(), seed=5)
    weights = {k: v for k, v in donor.state_dict().items() if not k.startswith("aux_head")}
    save_plain({"model": weights}, folder / "headless.pt")
    report = run.load_pretrained(folder / "headless.pt")
    assert report.missing == ("aux_head.weight", "aux_head.bias")
    found = to_plain(run.model.state_dict())
    assert all(torch.equal(found[key], value) for key, value in weights.items())
    part = {k: v for k, v in weights.items() if k != "blocks.1.mlp.up.weight"}
    other = build_model(ModelConfig(width=16)).state_dict()
    for payload, message in (
        ({"model": part}, "of whose module"),
        ({"model": {**weights, "blocks.2.norm1.weight": torch.ones(12)}}, "in a module of this"),
        ({"model": {f"net.{k}": v for k, v in weights.items()}}, "no key in common"),
        ({"model": other}, "shape"),
        ({"model": weights, "hyper_parameters": {"heads": 2}}, "heads: 2 in the file, 4 here"),
    ):
        save_plain(payload, folder / "other.pt")
        with pytest.raises(CheckpointError, match=message):
            run.load_pretrained(folder / "other.pt")
    assert differences(to_plain(run.model.state_dict()), found) == []


def test_a_transfer_takes_whole_modules_of_the_same_architecture(tmp_path: Path) -> None:
    run_ranks(2, transfer, tmp_path)


def parameters_only(path: Path) -> None:
    run = trainer("fsdp=2")
    run.train(2)
    wanted = to_plain(run.model.state_dict())
    save_parameters(run.model, path)
    fresh = trainer("fsdp=2")
    kept = [id(p) for p in fresh.model.parameters()]
    load_parameters(fresh.model, path)
    assert differences(to_plain(fresh.model.state_dict()), wanted) == []
    assert kept == [id(p) for p in fresh.model.parameters()]
    if dist.get_rank() == 0:
        saved = torch.load(path, weights_only=True)
        saved["model"]["scale"] = torch.ones(2)
        write_file(path, saved)
    with pytest.raises(CheckpointError, match=r"'scale': torch.float32 \(2,\)"):
        load_parameters(fresh.model, path)
    assert differences(to_plain(fresh.model.state_dict()), wanted) == []


def test_parameters_alone_are_read_by_one_rank_and_broadcast(tmp_path: Path) -> None:
    run_ranks(2, parameters_only, tmp_path / "light.pt")


def hidden() -> None:
    mesh = topology("dp=2").mesh
    assert mesh is not None
    inside = Frozen(distribute_tensor(torch.ones(3), mesh, [Shard(0)]))
    with pytest.raises(ValueError, match=r"at 'run\.note'"):
        split({"run": {"note": inside}})


def test_a_shard_inside_an_object_is_not_pickled() -> None:
    run_ranks(2, hidden)


def test_module_versions_survive(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(2)
    save_plain({"model": model.state_dict()}, tmp_path / "norm.pt")
    saved = torch.load(tmp_path / "norm.pt", weights_only=True)["model"]
    assert saved._metadata[""]["version"] == 2
