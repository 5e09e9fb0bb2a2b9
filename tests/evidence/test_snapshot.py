"""A snapshot sees all of a run's state, and changes none of it."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_cplife.evidence.records import TensorRecord, ValueRecord
from pytest_cplife.evidence.snapshot import Snapshot, rng_digests, take_snapshot
from pytest_cplife.evidence.store import TensorStore
from tests.evidence.toys import Chatty, ToyRun


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    return TensorStore(tmp_path)


@pytest.fixture
def run() -> ToyRun:
    return ToyRun()


def look(run: ToyRun, store: TensorStore) -> Snapshot:
    return take_snapshot("now", 0, run, store)


def test_every_name_of_every_tensor(run: ToyRun, store: TensorStore) -> None:
    seen = look(run, store)
    assert list(seen.parameters) == [
        "frozen",
        "embed.weight",
        "norm.weight",
        "norm.bias",
        "head.weight",
    ]
    assert list(seen.buffers) == [
        "table",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    assert set(seen.persistent) == set(run.model.state_dict())
    assert "table" not in seen.persistent
    for name, record in (seen.parameters | seen.buffers).items():
        tensor = run.model.get_parameter(name) if name in seen.parameters else None
        tensor = run.model.get_buffer(name) if tensor is None else tensor
        assert torch.equal(store.get(record.digest or "", record.dtype, record.shape), tensor)


def test_gradients_of_frozen_parameters(run: ToyRun, store: TensorStore) -> None:
    run.train(1)
    assert run.model.norm.weight.grad is not None  # of one that trains
    assert look(run, store).frozen_gradients == ()
    run.model.frozen.grad = torch.zeros(2)
    assert look(run, store).frozen_gradients == ()
    run.model.frozen.grad[1] = torch.nan
    assert look(run, store).frozen_gradients == ("frozen",)
    run.model.frozen.requires_grad_(True)
    assert look(run, store).frozen_gradients == ()


def test_ties_are_one_object(run: ToyRun, store: TensorStore) -> None:
    seen = look(run, store).parameters
    assert seen["embed.weight"].identity == seen["head.weight"].identity
    assert seen["embed.weight"].identity != seen["norm.weight"].identity


def test_optimizer_state_by_name(run: ToyRun, store: TensorStore) -> None:
    assert look(run, store).optimizer_state == {}
    run.train(2)
    state = look(run, store).optimizer_state
    assert set(state) == {"embed.weight", "norm.weight", "norm.bias"}
    entries = state["norm.bias"]
    assert set(entries) == {"step", "exp_avg", "exp_avg_sq"}
    step = entries["step"]
    assert isinstance(step, TensorRecord)
    assert store.get(step.digest or "", step.dtype, ()).item() == 2


def test_nested_optimizer_state_is_seen_tensor_by_tensor(run: ToyRun, store: TensorStore) -> None:
    """Shampoo and its kin keep lists and mappings of tensors."""
    weight = run.model.embed.weight
    run.optimizers[0].state[weight] = {"step": 3, "factors": [torch.eye(2), {"inverse": weight}]}
    entries = look(run, store).optimizer_state["embed.weight"]
    assert list(entries) == ["step", "factors.0", "factors.1.inverse"]
    assert entries["step"] == ValueRecord("int", "3")
    assert isinstance(entries["factors.1.inverse"], TensorRecord)


def test_groups_have_every_key(run: ToyRun, store: TensorStore) -> None:
    first, second = look(run, store).groups
    assert (first.optimizer, first.index, first.names) == (0, 0, ("embed.weight",))
    assert second.names == ("norm.weight", "norm.bias")
    assert first.values["tag"] == ValueRecord("str", "'decayed'")
    assert second.values["betas.0"] == ValueRecord("float", "0.8")
    assert first.values["initial_lr"] == ValueRecord("float", "0.1")
    assert "params" not in first.values


def test_strangers_are_seen(run: ToyRun, store: TensorStore) -> None:
    stranger = torch.nn.Parameter(torch.zeros(7))
    run.optimizers[0].add_param_group({"params": [stranger]})
    run.optimizers[0].state[torch.nn.Parameter(torch.zeros(4, 4))] = {"step": torch.zeros(())}
    seen = look(run, store)
    assert seen.groups[2].names == ("?(7,)",)
    assert seen.state_names_stray == ("(4, 4)",)
    assert seen.optimizer_state == {}


def test_the_rest(run: ToyRun, store: TensorStore) -> None:
    run.train(1)
    run.epoch = 2
    seen = look(run, store)
    assert seen.counters == {"global_step": 1, "epoch": 2}
    assert seen.schedulers[0]["last_epoch"] == ValueRecord("int", "1")
    assert (seen.moment, seen.rank, seen.training) == ("now", 0, True)
    assert (seen.ema, seen.extra) == (None, None)
    run.model.eval()
    run.ema = {"embed.weight": run.model.embed.weight.detach().clone()}
    seen = look(run, store)
    assert seen.ema is not None
    assert list(seen.ema) == ["embed.weight"]
    assert not seen.training


def test_extra_state(store: TensorStore) -> None:
    extra = look(Chatty(), store).extra
    assert extra is not None
    assert list(extra) == ["cursor.epoch", "cursor.position", "scale"]


class Renamed(ToyRun):
    """Names its parameters otherwise than the module does, and state too (ZeRO)."""

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((f"flat.{name}", p) for name, p in self.model.named_parameters())

    def named_optimizer_state(self) -> Mapping[str, Mapping[str, Any]]:
        return {"flat.frozen": {"step": 1}}


def test_overridden_names_are_taken(store: TensorStore) -> None:
    run = Renamed()
    run.train(1)
    seen = look(run, store)
    assert next(iter(seen.parameters)) == "flat.frozen"
    assert seen.groups[0].names == ("flat.embed.weight",)
    assert seen.optimizer_state == {"flat.frozen": {"step": ValueRecord("int", "1")}}
    assert seen.state_names_stray == ()


def state_of(run: ToyRun) -> bytes:
    """Everything that a run holds, and every random stream."""
    return pickle.dumps(
        (
            {name: value.tolist() for name, value in run.model.state_dict().items()},
            {
                name: None if p.grad is None else p.grad.tolist()
                for name, p in run.model.named_parameters()
            },
            [[str(k) for k in o.state.values()] for o in run.optimizers],
            [[{k: str(v) for k, v in g.items()} for g in o.param_groups] for o in run.optimizers],
            [s.state_dict() for s in run.schedulers],
            torch.get_rng_state().tolist(),
            random.getstate(),
            str(np.random.get_state()),
            torch.is_grad_enabled(),
            [m.training for m in run.model.modules()],
        )
    )


@pytest.mark.parametrize("steps", [0, 2])
def test_looking_changes_nothing(store: TensorStore, steps: int) -> None:
    run = Chatty()
    run.train(steps)
    before, objects = state_of(run), [id(p) for p in run.model.parameters()]
    for _ in range(2):
        look(run, store)
    assert state_of(run) == before
    assert [id(p) for p in run.model.parameters()] == objects


def test_a_run_that_was_looked_at_trains_on_like_one_that_was_not(store: TensorStore) -> None:
    watched, alone = ToyRun(), ToyRun()
    for _ in range(3):
        look(watched, store)
        assert watched.train(1) == alone.train(1)
    left, right = watched.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_two_looks_are_equal_and_travel(run: ToyRun, store: TensorStore) -> None:
    run.train(1)
    seen = look(run, store)
    assert seen == look(run, store)
    assert pickle.loads(pickle.dumps(seen)) == seen
    run.train(1)
    assert seen != look(run, store)


@pytest.mark.parametrize(
    ("stream", "draw"),
    [
        ("torch", lambda: torch.rand(1)),
        ("numpy", lambda: np.random.rand()),
        ("python", random.random),
    ],
)
def test_each_stream_has_a_digest_of_its_own(stream: str, draw: Any) -> None:
    before = rng_digests()
    assert before == rng_digests()
    assert set(before) == {"torch", "numpy", "python"}
    state = copy.deepcopy((torch.get_rng_state(), np.random.get_state(), random.getstate()))
    draw()
    assert {name for name, digest in rng_digests().items() if digest != before[name]} == {stream}
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])
    assert rng_digests() == before
