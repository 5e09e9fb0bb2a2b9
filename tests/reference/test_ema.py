"""The average: its values, its swap, its way through checkpoints, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_cplife.reference_impl.ema import Ema, warmed_up
from pytest_cplife.reference_impl.plain import to_plain
from pytest_cplife.reference_impl.resume import plain_payload
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from .ranks import run_ranks, run_serial, topology, trainer


def average_by_hand(spec: str) -> Any:
    run = trainer(spec)
    oracle = {k: v.double() for k, v in to_plain(dict(run.model.named_parameters())).items()}
    for update in range(1, 5):
        run.train(1)
        decay = min(0.9, (1 + update) / (10 + update))
        for name, value in to_plain(dict(run.model.named_parameters())).items():
            oracle[name] = decay * oracle[name] + (1 - decay) * value.double()
    shadow = to_plain(run.ema.shadow)
    weights = to_plain(dict(run.model.named_parameters()))
    moved = max((shadow[k] - weights[k]).abs().max().item() for k in shadow)
    return max((shadow[k].double() - oracle[k]).abs().max().item() for k in oracle), moved


@pytest.mark.parametrize("spec", ["", "fsdp=2", "fsdp=2,tp=2"])
def test_it_is_the_average_of_the_full_weights(spec: str) -> None:
    results = (
        run_ranks(4 if "tp" in spec else 2, average_by_hand, spec)
        if spec
        else [run_serial(average_by_hand, spec)]
    )
    for error, moved in results:
        assert error < 1e-6
        assert moved > 1e-3


def swap(path: Path) -> None:
    run = trainer("fsdp=2")
    run.train(2)
    before = to_plain(dict(run.model.named_parameters()))
    layout = [(id(p), p.placements) for p in run.model.parameters() if isinstance(p, DTensor)]
    with pytest.raises(ZeroDivisionError), torch.inference_mode(), run.ema.weights():
        inside = to_plain(dict(run.model.named_parameters()))
        shadow = to_plain(run.ema.shadow)
        assert all(torch.equal(inside[name], shadow[name]) for name in shadow)
        assert not torch.equal(inside["scale"], before["scale"])
        assert all(
            type(value) is Tensor and value.device.type == "cpu"
            for value in (run.ema._backup or {}).values()
        )
        for refused in (lambda: run.train(1), run.ema.update, run.ema.weights().__enter__):
            with pytest.raises(RuntimeError, match="averaged weights"):
                refused()
        run.save(path)
        averaged = run.predict()
        _ = 1 / 0
    after = to_plain(dict(run.model.named_parameters()))
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert layout == [
        (id(p), p.placements) for p in run.model.parameters() if isinstance(p, DTensor)
    ]
    saved = torch.load(path, weights_only=True)
    assert all(torch.equal(saved["model"][name], before[name]) for name in before)
    assert all(torch.equal(saved["ema"]["shadow"][name], shadow[name]) for name in before)
    assert not torch.equal(averaged, run.predict())
    run.train(1)


def test_the_swap_is_undone_by_an_error_and_a_save_inside_it_has_training_weights(
    tmp_path: Path,
) -> None:
    run_ranks(2, swap, tmp_path / "inside.pt")


def backfill(path: Path) -> None:
    run = trainer("fsdp=2")
    run.train(2)
    payload = plain_payload(run)
    payload["ema"]["shadow"].pop("scale")
    payload["ema"]["shadow"]["stranger"] = torch.zeros(2)
    from pytest_cplife.reference_impl.checkpoint import save_plain

    save_plain(payload, path)
    fresh = trainer("fsdp=2")
    with pytest.warns(UserWarning) as caught:
        fresh.load(path)
    assert any("['scale']" in str(warning.message) for warning in caught)
    assert any("['stranger']" in str(warning.message) for warning in caught)
    shadow, weights = to_plain(fresh.ema.shadow), to_plain(dict(run.model.named_parameters()))
    assert torch.equal(shadow["scale"], weights["scale"])
    assert fresh.ema.updates == 2


def test_missing_averages_are_begun_from_the_loaded_weights(tmp_path: Path) -> None:
    run_ranks(2, backfill, tmp_path / "gaps.pt")


def refuse() -> None:
    mesh = topology("dp=2").mesh
    assert mesh is not None
    model = nn.Linear(3, 3, bias=False)
    for placement in (Shard(0), Partial()):
        if placement.is_partial():
            weight = DTensor.from_local(torch.ones(3, 3), mesh, [placement])
        else:
            weight = distribute_tensor(torch.ones(3, 3), mesh, [placement])
        model.weight = nn.Parameter(weight)
        with pytest.raises(ValueError, match=r"sharded=True|no average"):
            Ema(model, warmed_up(0.9), sharded=placement.is_partial())


def test_shards_are_refused_unless_announced_and_partial_always() -> None:
    run_ranks(2, refuse)


def test_low_precision_is_averaged_in_single() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    ema = Ema(model, lambda update: 0.999)
    nn.init.constant_(model.weight, 2.0)
    for _ in range(2000):
        ema.update()
    assert ema.shadow["weight"].dtype == torch.float32
    assert ema.shadow["weight"].item() == pytest.approx(2 - 0.999**2000, rel=1e-3)
