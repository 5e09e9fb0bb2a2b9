"""Looking at plain tensors and values: what is told apart and what is not."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.observe import flat_values, view_tensor, view_value
from pytest_cplife.evidence.records import ValueRecord
from pytest_cplife.evidence.store import TensorStore


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    return TensorStore(tmp_path)


class Marked(torch.Tensor):
    """A tensor subclass that no rule knows."""


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Config:
    name: str
    other: str


def test_a_plain_tensor(store: TensorStore) -> None:
    record = view_tensor(torch.arange(6).reshape(2, 3).t(), store)
    assert (record.kind, record.type_name, record.device) == ("plain", "Tensor", "cpu")
    assert (record.dtype, record.shape, record.stride) == ("torch.int64", (3, 2), (1, 3))
    assert (record.local_shape, record.mesh, record.placements) == ((3, 2), None, ())
    assert record.numel == record.local_numel == 6
    assert not record.requires_grad
    assert record.digest == store.put(torch.arange(6).reshape(2, 3).t())
    assert record.layout() == "Tensor"


def test_parameters_and_buffers_are_plain(store: TensorStore) -> None:
    for tensor in (torch.nn.Parameter(torch.ones(2)), torch.nn.Buffer(torch.ones(2))):
        record = view_tensor(tensor, store)
        assert (record.kind, record.type_name) == ("plain", "Tensor")
    assert view_tensor(torch.nn.Parameter(torch.ones(2)), store).requires_grad


@pytest.mark.parametrize("wrap", [lambda t: t, torch.nn.Parameter], ids=["tensor", "parameter"])
def test_other_classes_are_named(store: TensorStore, wrap: Any) -> None:
    record = view_tensor(wrap(torch.ones(2).as_subclass(Marked)), store)
    assert (record.kind, record.type_name) == ("other", "Marked")
    assert record.layout() == "Marked"
    assert record.digest == store.put(torch.ones(2))


def test_a_meta_tensor_has_no_values(store: TensorStore) -> None:
    tensors = [torch.empty(3, device="meta"), torch.empty(3, device="meta")]
    first, second = (view_tensor(tensor, store) for tensor in tensors)
    assert (first.digest, first.device) == (None, "meta")
    assert first.alias != second.alias


def test_a_sparse_gradient_is_seen_by_value(store: TensorStore) -> None:
    """nn.Embedding(sparse=True) makes such gradients."""
    record = view_tensor(torch.eye(3).to_sparse(), store)
    assert (record.type_name, record.shape) == ("Tensor", (3, 3))
    assert record.digest == store.put(torch.eye(3))
    assert record.layout() == "Tensor"


def test_shared_storage_has_one_alias(store: TensorStore) -> None:
    base = torch.arange(8.0)
    whole, part, copy = (view_tensor(t, store) for t in (base, base[2:4], base.clone()))
    assert whole.alias == part.alias != copy.alias
    assert part.storage_bytes == 32


def test_empty_tensors_share_nothing(store: TensorStore) -> None:
    kept = [torch.empty(0), torch.empty(0)]
    aliases = [view_tensor(t, store).alias for t in kept]
    assert aliases[0] != aliases[1]


def test_identity_is_the_objects(store: TensorStore) -> None:
    tensor = torch.nn.Parameter(torch.ones(2))
    assert view_tensor(tensor, store).identity == view_tensor(tensor, store).identity
    assert view_tensor(tensor, store).identity != view_tensor(tensor.data, store).identity


def test_looking_changes_nothing(store: TensorStore) -> None:
    leaf = torch.ones(2, requires_grad=True)
    result = leaf * 2
    version = result._version
    view_tensor(result, store)
    assert (leaf.grad, result._version) == (None, version)
    result.sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (0.1, 0.1 + 1e-17 * 2),
        ("1", 1),
        (None, "None"),
        (b"a", "a"),
        ((), []),
        ({1, 2}, {1, 3}),
        ({1}, frozenset({1})),
        (Level.LOW, Level.HIGH),
        (Config("a", "b"), Config("a", "c")),
        (torch.float32, torch.float64),
        (SimpleNamespace(x=1), SimpleNamespace(x=2)),
        (10**400, 10**400 + 1),
    ],
    ids=str,
)
def test_values_that_differ_have_other_records(store: TensorStore, one: Any, other: Any) -> None:
    assert (view_value(one, store) == view_value(other, store)) is (
        type(one) is type(other) and repr(one) == repr(other)
    )
    assert view_value(one, store) == view_value(one, store)


def test_nan_equals_itself(store: TensorStore) -> None:
    assert view_value(float("nan"), store) == view_value(float("nan"), store)


def test_equal_objects_are_equal_however_they_came_to_be(store: TensorStore) -> None:
    """One string used twice and two equal strings pickle to other bytes."""
    text = "".join(["some ", "text"])
    twice, apart = Config(text, text), Config(text, "".join(["some", " text"]))
    assert view_value(twice, store) == view_value(apart, store)


def test_a_cycle_is_no_trouble(store: TensorStore) -> None:
    knot = SimpleNamespace(name="knot")
    knot.self = knot
    assert view_value(knot, store) == view_value(knot, store)


def test_what_cannot_be_pickled_goes_by_its_class(store: TensorStore) -> None:
    record = view_value(lambda: 1, store)
    assert isinstance(record, ValueRecord)
    assert record.text == "<function>"


def test_a_set_does_not_depend_on_the_process(store: TensorStore) -> None:
    """Strings hash differently in every process, and so a set's order differs too."""
    seen = view_value({"alpha", "beta", "gamma", "delta"}, store)
    assert isinstance(seen, ValueRecord)
    assert seen.text == "{'alpha', 'beta', 'delta', 'gamma'}"
    nested = view_value(frozenset({("b", 1), ("a", 2)}), store)
    again = view_value(frozenset({("a", 2), ("b", 1)}), store)
    assert nested == again


def test_trees_are_flattened(store: TensorStore) -> None:
    tree = {
        "lr": 0.1,
        "betas": (0.9, 0.99),
        "nested": {"list": [{"x": None}], "empty": {}, "nothing": []},
        3: torch.ones(1),
        "milestones": Counter([4, 4]),
    }
    flat = flat_values(tree, store)
    assert list(flat) == [
        "lr",
        "betas.0",
        "betas.1",
        "nested.list.0.x",
        "nested.empty",
        "nested.nothing",
        "[3]",
        "milestones[4]",
    ]
    assert flat["lr"] == ValueRecord("float", "0.1")
    assert flat["nested.empty"] == ValueRecord("dict", "{}")
    assert flat["[3]"].type_name == "Tensor"
    assert flat_values(0.5, store, "lr") == {"lr": ValueRecord("float", "0.5")}


def test_a_key_is_text_or_it_is_not(store: TensorStore) -> None:
    """A milestone under ``"4"`` is met by no step; a list of betas is read like a tuple of them."""
    assert flat_values({"m": {4: 1}}, store) != flat_values({"m": {"4": 1}}, store)
    assert flat_values({"m": {True: 1}}, store) != flat_values({"m": {1: 1}}, store)
    assert flat_values({"betas": (0.9, 0.99)}, store) == flat_values({"betas": [0.9, 0.99]}, store)
    assert flat_values({"hooks": ()}, store) != flat_values({"hooks": []}, store)
