"""Edits of a file: what they make of its optimizers, and when there is none to be made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytest_cplife.selftest.trainers.ddp import Adapter

from pytest_cplife import LifecycleAdapter
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.scenarios import optimizer_edits as edits
from pytest_cplife.scenarios.editing import NothingToEdit, _why_not
from pytest_cplife.scenarios.legacy import _turned, _widened


class Facts(dict[str, Any]):
    """Stands for a recorder; keeps what is noted."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.store = TensorStore(folder)

    def fact(self, name: str, value: Any) -> None:
        self[name] = value


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    return SimpleNamespace(recorder=Facts(tmp_path))


class Live:
    """Stands for a run: three parameters in two groups."""

    def __init__(self) -> None:
        self.parameters = {n: torch.nn.Parameter(torch.ones(2, 3)) for n in ("a", "b", "c")}
        a, b, c = self.parameters.values()
        groups = [{"params": [a, c]}, {"params": [b], "weight_decay": 0.5}]
        self.optimizers = [torch.optim.AdamW(groups, weight_decay=0.1)]

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield from self.parameters.items()


def by_name() -> CheckpointView:
    entries = {
        n: {"step": torch.tensor(3.0), "m": torch.full((2, 3), i)} for i, n in enumerate("acb")
    }
    groups = [
        {"params": ["a", "c"], "lr": 0.3, "weight_decay": 0.1, "param_names": ["a", "c"]},
        {"params": ["b"], "lr": 0.4, "weight_decay": 0.5, "param_names": ["b"]},
    ]
    optimizer = {"state": entries, "param_groups": groups}
    model = {n: torch.arange(6.0).reshape(2, 3) for n in "abc"}
    return CheckpointView(model, [optimizer], payload={"model": model, "optimizer": optimizer})


def by_number() -> CheckpointView:
    view = by_name()
    edits.integer_keys(view, None, None)  # type: ignore[arg-type]
    return view


def test_names_stay_with_their_state_in_another_order(stage: Any) -> None:
    view, was = by_name(), by_name()
    edits.names_in_another_order(view, stage, Live())  # type: ignore[arg-type]
    (now,), (before,) = view.optimizers, was.optimizers
    assert list(now["state"]) == ["b", "c", "a"]
    assert [group["params"] for group in now["param_groups"]] == [["b"], ["c", "a"]]
    assert [group["param_names"] for group in now["param_groups"]] == [["b"], ["c", "a"]]
    assert all(torch.equal(now["state"][n]["m"], before["state"][n]["m"]) for n in "abc")
    with pytest.raises(NothingToEdit, match="keyed by name"):
        edits.names_in_another_order(by_number(), stage, Live())  # type: ignore[arg-type]


@pytest.mark.parametrize("view", [by_name(), by_number()], ids=["names", "numbers"])
def test_a_group_more(stage: Any, view: CheckpointView) -> None:
    edits.more_groups(view, stage, Live())  # type: ignore[arg-type]
    groups = view.optimizers[0]["param_groups"]
    assert [len(group["params"]) for group in groups] == [1, 1, 1]
    options = stage.recorder["options of more param groups"]
    decay = {name: values["weight_decay"].text for name, values in options.items()}
    assert decay == {"a": "0.1", "c": "0.201", "b": "0.5"}
    assert not any("lr" in values for values in options.values())


def test_a_group_less(stage: Any) -> None:
    view = by_name()
    edits.fewer_groups(view, stage, Live())  # type: ignore[arg-type]
    (group,) = view.optimizers[0]["param_groups"]
    assert (group["params"], group["param_names"]) == (["a", "c", "b"], ["a", "c", "b"])
    options = stage.recorder["options of fewer param groups"]
    assert {values["weight_decay"].text for values in options.values()} == {"0.1"}
    with pytest.raises(NothingToEdit, match="two param groups"):
        edits.fewer_groups(view, stage, Live())  # type: ignore[arg-type]


@pytest.mark.parametrize("view", [by_name, by_number], ids=["names", "numbers"])
def test_state_of_another_size_or_gone_is_told_by_name(stage: Any, view: Any) -> None:
    file = view()
    assert edits.resized(file, stage, Live()) == "a[m]"  # type: ignore[arg-type]
    shapes = [entries["m"].shape for entries in file.optimizers[0]["state"].values()]
    assert sorted(map(tuple, shapes)) == [(2, 3), (2, 3), (3, 3)]
    file = view()
    assert edits.missing(file, stage, Live()) == "b"  # type: ignore[arg-type]
    assert len(file.optimizers[0]["state"]) == 2


def test_values_stay_where_order_and_type_change(stage: Any) -> None:
    view, was = by_name(), by_name().model
    assert _turned(view, stage, None) == "a"  # type: ignore[arg-type]
    assert view.model["a"].stride() == (1, 2) != was["a"].stride()
    assert torch.equal(view.model["a"], was["a"])
    assert view.optimizers[0]["state"]["a"]["m"].stride() == (1, 2)
    assert _widened(view, stage, None) == "a"  # type: ignore[arg-type]
    assert view.model["a"].dtype == torch.float64
    assert torch.equal(view.model["a"].float(), was["a"])
    wide = CheckpointView({"a": torch.ones(2, dtype=torch.float64)})
    with pytest.raises(NothingToEdit, match="wider"):
        _widened(wide, stage, None)  # type: ignore[arg-type]


def test_a_format_of_its_own_is_edited_by_its_own_means(tmp_path: Path) -> None:
    """An edit that went past `read_checkpoint` would make another file than the trainer's."""

    class Reads(Adapter):
        def read_checkpoint(self, path: Path) -> CheckpointView:
            return CheckpointView({})

    class Writes(Reads):
        def write_checkpoint(self, view: CheckpointView, path: Path) -> None:
            pass

    file = tmp_path / "file"
    assert _why_not(Adapter(), file) == ""
    assert "write_checkpoint" in _why_not(Reads(), file)
    assert _why_not(Writes(), file) == ""
    assert "directory" in _why_not(Adapter(), tmp_path)
    assert _why_not(Writes(), tmp_path) == ""


def test_the_default_writes_what_the_default_reads(tmp_path: Path) -> None:
    adapter, path = Adapter(), tmp_path / "file"
    torch.save({"model": adapter.build_serial_model().state_dict(), "global_step": 3}, path)
    view = adapter.read_checkpoint(path)
    view.model["gain"] = torch.tensor([7.0])  # type: ignore[index]
    LifecycleAdapter.write_checkpoint(adapter, view, path)
    again = adapter.read_checkpoint(path)
    assert again.model["gain"].item() == 7.0
    assert again.counters == {"global_step": 3}
