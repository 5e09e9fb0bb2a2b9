"""The trace of optimizer steps, taken without the trainer's help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_cplife.evidence.records import TensorRecord, ValueRecord
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.evidence.trace import tracing
from tests.evidence.toys import ToyRun


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    return TensorStore(tmp_path)


@pytest.fixture
def run() -> ToyRun:
    return ToyRun()


def test_each_step_is_recorded_before_it_is_made(run: ToyRun, store: TensorStore) -> None:
    with tracing(run, store) as trace:
        run.train(3)
    assert [step.global_step for step in trace.steps] == [0, 1, 2]
    assert [step.hyperparameters[0]["lr"] for step in trace.steps] == [
        ValueRecord("float", text) for text in ("0.1", "0.05", "0.025")
    ]


def test_every_hyperparameter_is_seen(run: ToyRun, store: TensorStore) -> None:
    """Pairs such as betas as well: some schedules move the momentum too."""
    with tracing(run, store) as trace:
        run.train(1)
    first, second = trace.steps[0].hyperparameters
    assert first["weight_decay"] == ValueRecord("float", "0.1")
    assert first["tag"] == ValueRecord("str", "'decayed'")
    assert second["betas.0"] == ValueRecord("float", "0.8")
    assert "params" not in first


def test_gradients_by_name(run: ToyRun, store: TensorStore) -> None:
    with tracing(run, store) as trace:
        run.train(1)
    (step,) = trace.steps
    assert list(step.gradients) == ["embed.weight", "norm.weight", "norm.bias"]
    for name, record in step.gradients.items():
        grad = run.model.get_parameter(name).grad
        assert grad is not None
        assert torch.equal(store.get(record.digest or "", record.dtype, record.shape), grad)


def test_parameters_without_a_gradient(run: ToyRun, store: TensorStore) -> None:
    model = run.model
    run.optimizers[0].add_param_group({"params": [model.frozen]})
    stranger = torch.nn.Parameter(torch.zeros(3))
    run.optimizers[0].add_param_group({"params": [stranger]})
    with tracing(run, store) as trace:
        run.optimizers[0].step()
    (step,) = trace.steps
    # A frozen parameter has none by intent.
    assert step.without_gradient == ("embed.weight", "norm.weight", "norm.bias", "?(3,)")
    assert step.gradients == {}


def test_the_values_of_the_first_gradients_only_are_kept(run: ToyRun, store: TensorStore) -> None:
    with tracing(run, store) as trace:
        run.train(2)
    first, second = (step.gradients["norm.weight"] for step in trace.steps)
    assert first.digest != second.digest
    store.get(first.digest or "", first.dtype, first.shape)
    with pytest.raises(FileNotFoundError):
        store.get(second.digest or "", second.dtype, second.shape)


def test_each_optimizers_first_gradients_are_kept(run: ToyRun, store: TensorStore) -> None:
    other = torch.optim.SGD([run.model.frozen], lr=0.1)
    run.optimizers = [*run.optimizers, other]
    run.model.frozen.grad = torch.full((2,), 3.0)
    with tracing(run, store) as trace:
        run.train(1)
        other.step()
    assert [step.optimizer for step in trace.steps] == [0, 1]
    record = trace.steps[1].gradients["frozen"]
    assert store.get(record.digest or "", record.dtype, record.shape).tolist() == [3.0, 3.0]


def test_a_sparse_gradient(store: TensorStore) -> None:
    run = ToyRun()
    run.model.embed.sparse = True
    run.model.head.weight = torch.nn.Parameter(torch.ones(5, 3))
    weight = run.model.embed.weight
    run.optimizers = [torch.optim.SparseAdam([weight], lr=0.1)]
    run.schedulers = [torch.optim.lr_scheduler.StepLR(run.optimizers[0], 1)]
    with tracing(run, store) as trace:
        run.train(1)
    record = trace.steps[0].gradients["embed.weight"]
    assert isinstance(record, TensorRecord)
    assert record.shape == (5, 3)


def test_the_hook_ends_with_the_block(run: ToyRun, store: TensorStore) -> None:
    with pytest.raises(RuntimeError), tracing(run, store) as trace:
        run.train(1)
        raise RuntimeError
    run.train(1)
    assert len(trace.steps) == 1


def test_being_traced_changes_no_step(run: ToyRun, store: TensorStore) -> None:
    alone = ToyRun()
    state = torch.get_rng_state()
    with tracing(run, store):
        losses = run.train(3)
    assert torch.equal(state, torch.get_rng_state())
    assert losses == alone.train(3)
    left, right = run.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)
