"""What is recorded of a checkpoint file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.checkpoint import find_parts
from pytest_cplife.evidence.filing import FileRecord, view_file
from pytest_cplife.evidence.records import TensorRecord, ValueRecord
from pytest_cplife.evidence.store import TensorStore
from tests.evidence.toys import ToyRun


@pytest.fixture
def run() -> ToyRun:
    run = ToyRun()
    run.train(1)
    return run


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    return TensorStore(tmp_path / "store")


def filed(payload: Any, run: ToyRun, store: TensorStore) -> FileRecord:
    path = store.root.parent / "checkpoint.pt"
    torch.save(payload, path)
    payload = torch.load(path, weights_only=False)
    view = find_parts(payload, list(run.model.state_dict()))
    return view_file(path, view, store)


def test_model_in_the_files_order(run: ToyRun, store: TensorStore) -> None:
    state = run.model.state_dict()
    turned = dict(reversed(state.items()))
    record = filed({"model": turned, "step": 4}, run, store)
    assert list(record.model) == list(turned)
    assert record.counters == {"global_step": 4}
    weight = record.model["embed.weight"]
    assert isinstance(weight, TensorRecord)
    assert weight.digest == store.put(state["embed.weight"])
    assert (record.ema, record.optimizers, record.dtensors) == (None, (), ())
    assert record.bytes_on_disk == (store.root.parent / "checkpoint.pt").stat().st_size


def test_values_that_are_no_tensors_are_kept(run: ToyRun, store: TensorStore) -> None:
    state = {**run.model.state_dict(), "_extra_state": {"scale": 2}}
    assert isinstance(filed({"model": state}, run, store).model["_extra_state"], ValueRecord)


def test_module_versions(run: ToyRun, store: TensorStore) -> None:
    noted = filed({"model": run.model.state_dict()}, run, store).versions
    assert (noted[""], noted["norm"]) == (1, 2), "torch's own batch norm is in its second version"
    assert filed({"model": dict(run.model.state_dict())}, run, store).versions == {}


def test_averages(run: ToyRun, store: TensorStore) -> None:
    state = run.model.state_dict()
    record = filed({"model": state, "ema": {f"m.{n}": v + 1 for n, v in state.items()}}, run, store)
    assert record.ema is not None
    assert set(record.ema) == set(state)


def test_integer_keyed_optimizers(run: ToyRun, store: TensorStore) -> None:
    payload = {"model": run.model.state_dict(), "optimizer": run.optimizers[0].state_dict()}
    (optimizer,) = filed(payload, run, store).optimizers
    assert optimizer.integer_keys
    assert set(optimizer.state) == {"0", "1", "2"}
    assert set(optimizer.state["1"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert [group.names for group in optimizer.groups] == [("0",), ("1", "2")]
    assert optimizer.groups[1].values["betas.1"] == ValueRecord("float", "0.95")


def test_name_keyed_optimizers(run: ToyRun, store: TensorStore) -> None:
    optimizer = {
        "state": {"embed.weight": {"step": 1, "factors": [torch.eye(2)]}, "norm.bias": {}},
        "param_groups": [{"params": ["embed.weight"], "param_names": ["x"], "lr": 0.1}],
    }
    payload = {"model": run.model.state_dict(), "optimizer": optimizer}
    (seen,) = filed(payload, run, store).optimizers
    assert not seen.integer_keys
    assert list(seen.state["embed.weight"]) == ["step", "factors.0"]
    assert isinstance(seen.state["embed.weight"]["factors.0"], TensorRecord)
    assert seen.state["norm.bias"] == {}
    assert list(seen.groups[0].values) == ["lr"]


def test_keys_are_told_by_the_state_where_groups_name_nothing(
    run: ToyRun, store: TensorStore
) -> None:
    model = run.model.state_dict()
    for key, integer in ((0, True), ("embed.weight", False)):
        optimizer = {"state": {key: {"step": 1}}, "param_groups": [{"lr": 0.1}]}
        (seen,) = filed({"model": model, "optimizer": optimizer}, run, store).optimizers
        assert seen.integer_keys is integer
    optimizer = {"state": {}, "param_groups": []}
    (seen,) = filed({"model": model, "optimizer": optimizer}, run, store).optimizers
    assert not seen.integer_keys


def bloat(record: FileRecord, path: str) -> tuple[int, int]:
    ((size, needed),) = [(size, needed) for at, size, needed in record.storages if at == path]
    return size, needed


def test_a_view_drags_its_storage_along(run: ToyRun, store: TensorStore) -> None:
    whole = torch.zeros(1000)
    payload = {"model": run.model.state_dict(), "x": whole[:10], "y": whole[:10].clone()}
    record = filed(payload, run, store)
    assert bloat(record, "x") == (4000, 40)
    assert bloat(record, "y") == (40, 40)


def test_tied_tensors_need_their_bytes_once(run: ToyRun, store: TensorStore) -> None:
    record = filed({"model": run.model.state_dict()}, run, store)
    assert bloat(record, "model['embed.weight']") == (60, 60)
    assert "model['head.weight']" not in [path for path, _, _ in record.storages]


def test_views_that_use_up_their_storage_are_no_bloat(run: ToyRun, store: TensorStore) -> None:
    flat = torch.zeros(1000)
    payload = {"model": run.model.state_dict(), "parts": list(flat.split(300))}
    assert bloat(filed(payload, run, store), "parts[0]") == (4000, 4000)


def test_a_storage_is_found_wherever_it_hides(run: ToyRun, store: TensorStore) -> None:
    payload = {"model": run.model.state_dict(), "o": [{"deep": (torch.zeros(9)[:1],)}]}
    assert bloat(filed(payload, run, store), "o[0]['deep'][0]") == (36, 4)


def test_a_folder_counts_all_its_files(run: ToyRun, store: TensorStore) -> None:
    folder = store.root.parent / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "a").write_bytes(b"12345")
    (folder / "inner" / "b").write_bytes(b"123")
    view = find_parts(run.model.state_dict(), list(run.model.state_dict()))
    assert view_file(folder, view, store).bytes_on_disk == 8
