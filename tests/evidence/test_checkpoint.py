"""Finding the parts of checkpoints in the layouts that are in use."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_cplife.evidence.checkpoint import (
    CheckpointView,
    UnreadableCheckpoint,
    find_parts,
    read_plain_checkpoint,
)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def model() -> Tied:
    return Tied()


@pytest.fixture
def optimizer(model: Tied) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.norm(model.embed(torch.arange(4)))).sum().backward()
    optimizer.step()
    return optimizer


def shifted(state: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    return {prefix + name: value + 1 for name, value in state.items()}


def same(seen: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> bool:
    return list(seen) == list(state) and all(torch.equal(seen[name], state[name]) for name in seen)


def through_a_file(payload: Any, model: nn.Module, folder: Path) -> CheckpointView:
    torch.save(payload, folder / "checkpoint.pt")
    return read_plain_checkpoint(folder / "checkpoint.pt", model)


@dataclass
class State:
    model: dict[str, torch.Tensor]
    step: int


def test_a_bare_state_dict(model: Tied, tmp_path: Path) -> None:
    view = through_a_file(model.state_dict(), model, tmp_path)
    assert same(view.model, model.state_dict())
    assert (view.prefix, view.model_path, view.optimizers, view.ema) == ("", "", (), None)


def test_a_torch_script_of_old(
    model: Tied, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    payload = {
        "epoch": 3,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "iteration": 17,
    }
    view = through_a_file(payload, model, tmp_path)
    assert same(view.model, model.state_dict())
    assert view.model_path == "model"
    assert view.counters == {"global_step": 17, "epoch": 3}
    assert [sorted(o) for o in view.optimizers] == [["param_groups", "state"]]


def test_lightning(model: Tied, optimizer: torch.optim.Optimizer, tmp_path: Path) -> None:
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    payload = {
        "epoch": 1,
        "global_step": 8,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {**state, "metric.total": torch.zeros(1)},
        "loops": {"fit_loop": {"epoch_progress": {"current": {"completed": 1}}}},
        "callbacks": {"ModelCheckpoint{}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer.state_dict(), optimizer.state_dict()],
        "lr_schedulers": [{"last_epoch": 8, "_step_count": 9}],
    }
    view = through_a_file(payload, model, tmp_path)
    assert view.prefix == "model."
    assert same(view.model, model.state_dict())
    assert len(view.optimizers) == 2
    assert view.counters == {"global_step": 8, "epoch": 1}


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model.module."])
def test_prefixes_of_wrappers(model: Tied, prefix: str) -> None:
    names = list(model.state_dict())
    state = {prefix + name: value for name, value in model.state_dict().items()}
    view = find_parts({"model": state}, names)
    assert view.prefix == prefix
    assert same(view.model, model.state_dict())


@pytest.mark.parametrize("prefix", ["", "module."])
def test_an_edit_of_the_view_is_one_of_the_payload(model: Tied, prefix: str) -> None:
    """The rules for files of another architecture edit the trainer's own."""
    state = {prefix + name: value for name, value in model.state_dict().items()}
    payload = {"model": {**state, "other": 1}, "ema": dict(state)}
    view = find_parts(payload, list(model.state_dict()))
    for part, tree in ((view.model, payload["model"]), (view.ema, payload["ema"])):
        assert isinstance(part, MutableMapping)
        del part["norm.bias"]
        part["norm.weight"] = torch.zeros(9)
        part["new.weight"] = torch.zeros(1)
        assert prefix + "norm.bias" not in tree and prefix + "new.weight" in tree
        assert len(tree[prefix + "norm.weight"]) == 9
        assert ("norm.bias" in part, "new.weight" in part) == (False, True)
    assert len(view.model) == len(payload["model"]) - (1 if prefix else 0)


def test_deep_in_objects(model: Tied, optimizer: torch.optim.Optimizer, tmp_path: Path) -> None:
    payload = {"trainer": [State(model.state_dict(), 5)], "o": (optimizer.state_dict(),)}
    view = through_a_file(payload, model, tmp_path)
    assert view.model_path == "trainer[0].model"
    assert same(view.model, model.state_dict())
    assert len(view.optimizers) == 1


@pytest.mark.parametrize(
    "key", ["ema", "model_ema", "ema_state_dict", "emaModel", "averages", "shadow_params", "swa"]
)
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_averages_beside_the_model(model: Tied, key: str, first: bool) -> None:
    averages = {key: {"weights": shifted(model.state_dict(), "module.")}}
    weights = {"net": model.state_dict()}
    payload = averages | weights if first else weights | averages
    view = find_parts(payload, list(model.state_dict()))
    assert same(view.model, model.state_dict())
    assert view.ema is not None
    assert same(view.ema, shifted(model.state_dict()))


@pytest.mark.parametrize("key", ["semantic_encoder", "temamodel", "schema", "swapped"])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_words_that_merely_contain_ema(model: Tied, key: str, first: bool) -> None:
    averages, weights = {"model_ema": shifted(model.state_dict())}, {key: model.state_dict()}
    payload = averages | weights if first else weights | averages
    view = find_parts(payload, list(model.state_dict()))
    assert view.model_path == key
    assert same(view.model, model.state_dict())


def test_a_file_of_averages_alone(model: Tied) -> None:
    """Then they are what the file's model is."""
    view = find_parts({"ema": model.state_dict()}, list(model.state_dict()))
    assert same(view.model, model.state_dict())
    assert view.ema is None


def test_moments_by_name_are_no_model(model: Tied) -> None:
    state = model.state_dict()
    payload = {
        "optimizer": {"exp_avg": shifted(state), "exp_avg_sq": shifted(state)},
        "train_state": {"inner": {"weights": state}},
    }
    view = find_parts(payload, list(state))
    assert view.model_path == "train_state['inner']['weights']"


def test_a_model_that_lacks_keys_is_still_the_model(model: Tied) -> None:
    """What is missing is for a rule to say, by name."""
    state = dict(model.state_dict())
    del state["head.weight"]
    view = find_parts({"model": state}, list(model.state_dict()))
    assert "head.weight" not in view.model


def test_the_best_cover_wins(model: Tied) -> None:
    state = model.state_dict()
    payload = {"part": dict(list(state.items())[:-1]), "whole": state}
    assert find_parts(payload, list(state)).model_path == "whole"


def test_integer_and_name_keyed_optimizers(model: Tied, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state_dict()
    names = [name for name, _ in model.named_parameters()]
    by_name = {
        "state": {names[i]: entries for i, entries in state["state"].items()},
        "param_groups": [{**g, "params": names} for g in state["param_groups"]],
    }
    payload = {"model": model.state_dict(), "a": state, "b": by_name}
    view = find_parts(payload, list(model.state_dict()))
    assert [list(o["state"]) for o in view.optimizers] == [[0, 1, 2], names]


def test_counters_are_not_taken_from_optimizers(model: Tied) -> None:
    payload = {
        "optimizer": {
            "state": {0: {"step": 99, "momentum": torch.zeros(1)}},
            "param_groups": [{"params": [0], "step": 98}],
            "step": 97,
        },
        "model": model.state_dict(),
        "progress": {"global_step": 4, "epoch": True},
    }
    assert find_parts(payload, list(model.state_dict())).counters == {"global_step": 4}


def test_a_directory_is_refused_with_advice(model: Tied, tmp_path: Path) -> None:
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "__0_0.distcp").touch()
    (tmp_path / "step-3" / ".metadata").touch()
    with pytest.raises(UnreadableCheckpoint) as caught:
        read_plain_checkpoint(tmp_path / "step-3", model)
    text = str(caught.value)
    assert text.startswith("step-3 is a directory (.metadata, __0_0.distcp)")
    assert "read_checkpoint" in text and "export_plain" in text


def test_a_file_without_a_model_says_what_it_has(model: Tied, tmp_path: Path) -> None:
    payload = {"weights": {"other.weight": torch.zeros(2)}, "args": {"lr": 0.1, "steps": 3}}
    with pytest.raises(UnreadableCheckpoint) as caught:
        through_a_file(payload, model, tmp_path)
    text = str(caught.value)
    assert "7 keys of the serial model" in text
    for found in ("top level (2)", "weights (1)", "args (2)"):
        assert found in text


def test_a_file_of_no_mapping_at_all(model: Tied) -> None:
    with pytest.raises(UnreadableCheckpoint, match="none"):
        find_parts([torch.zeros(3)], list(model.state_dict()))


def test_what_is_no_checkpoint_is_an_error(model: Tied, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        read_plain_checkpoint(tmp_path / "notes.txt", model)
    with pytest.raises(FileNotFoundError):
        read_plain_checkpoint(tmp_path / "nothing", model)


def test_averages_in_the_models_place(model: Tied, tmp_path: Path) -> None:
    """Lightning keeps the averages as the model's state, and the weights that train elsewhere."""
    state = model.state_dict()
    payload = {
        "state_dict": shifted(state),
        "averaging_state": {"n_averaged": torch.tensor(3)},
        "current_model_state": state,
    }
    view = through_a_file(payload, model, tmp_path)
    assert (view.model_path, same(view.model, state)) == ("current_model_state", True)
    assert view.ema is not None
    assert same(view.ema, shifted(state))


def test_a_word_for_training_alone_makes_no_averages(model: Tied, tmp_path: Path) -> None:
    payload = {"training_state": {"model": model.state_dict()}, "step": 3}
    view = through_a_file(payload, model, tmp_path)
    assert (view.model_path, view.ema) == ("training_state['model']", None)
