"""Which keys are the model's, and which rank has to write how much."""

from __future__ import annotations

import pytest
import torch

from pytest_cplife.evidence.layout import ShardLayout, model_keys
from pytest_cplife.rules.model import Violation
from pytest_cplife.rules.shares import fair_loads, unbalanced
from tests.rules.builders import Lab

NAMES = ["embed.weight", "head.weight", "weight"]


@pytest.mark.parametrize("prefix", ["", "model.", "state.module."])
def test_the_models_keys_by_their_prefix(prefix: str) -> None:
    keys = [prefix + name for name in NAMES] + [f"optimizer.{name}.exp_avg" for name in NAMES]
    assert model_keys(keys, NAMES) == {name: prefix + name for name in NAMES}


def test_averages_are_not_taken_for_the_model() -> None:
    keys = [f"ema.shadow.{name}" for name in NAMES] + [f"net.{name}" for name in NAMES]
    assert model_keys(keys, NAMES) == {name: f"net.{name}" for name in NAMES}


def test_a_tied_name_may_be_missing() -> None:
    keys = ["m.embed.weight", "m.weight"]
    assert set(model_keys(keys, NAMES)) == {"embed.weight", "weight"}


def test_keys_that_go_by_no_name() -> None:
    assert model_keys(["0", "1"], NAMES) == {}
    assert model_keys([], NAMES) == {}


def test_replicas_are_shared_out(lab: Lab) -> None:
    parameters = {f"w{n}": lab.replicated(torch.ones(10)) for n in range(4)}
    parameters["cut"] = lab.sharded(torch.ones(10))
    live = lab.run("sharding", {"now": lab.snapshots(parameters=parameters)}).at("now")
    assert fair_loads(live) == [100, 100]


@pytest.mark.parametrize(("written", "found"), [((100, 100), 0), ((130, 70), 0), ((200, 0), 1)])
def test_one_rank_that_writes_it_all(lab: Lab, written: tuple[int, int], found: int) -> None:
    parameters = {f"w{n}": lab.sharded(torch.ones(10)) for n in range(5)}
    live = lab.run("sharding", {"now": lab.snapshots(parameters=parameters)}).at("now")
    files = {f"__{rank}_0.distcp": size for rank, size in enumerate(written)}
    layout = ShardLayout(1, files, {}, files, largest=20)
    heavy = [f for f in unbalanced(layout, live) if isinstance(f, Violation)]
    assert [violation.subject for violation in heavy] == ["files of rank 0"] * found
