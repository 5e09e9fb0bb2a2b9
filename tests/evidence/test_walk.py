"""Every leaf of a payload is found, wherever it hides, and in good time."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, UserDict, deque
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from pytest_cplife.evidence.walk import containers, walk

HIDDEN = torch.arange(3.0)


@dataclass
class Plain:
    inner: Any


@dataclass(slots=True)
class Slotted:
    inner: Any


class Base:
    __slots__ = ("inner",)


class Derived(Base):
    __slots__ = "own"


class Private:
    __slots__ = ("__inner",)

    def __init__(self, inner: Any) -> None:
        self.__inner = inner


class Pair(NamedTuple):
    first: int
    second: Any


def derived(inner: Any) -> Derived:
    node = Derived()
    node.inner, node.own = inner, 1
    return node


PLACES = {
    "itself": HIDDEN,
    "mapping": {"a": {"b": HIDDEN}},
    "integer keys": {0: {1: HIDDEN}},
    "ordered": OrderedDict(a=HIDDEN),
    "user dict": UserDict(a=HIDDEN),
    "list": [1, [HIDDEN]],
    "tuple": (1, (HIDDEN,)),
    "named tuple": Pair(1, HIDDEN),
    "set": {HIDDEN},
    "frozen set": frozenset({HIDDEN}),
    "deque": deque([HIDDEN]),
    "dataclass": Plain(Plain(HIDDEN)),
    "slots": Slotted(Slotted(HIDDEN)),
    "slots of a base": derived(HIDDEN),
    "private slot": Private(HIDDEN),
    "namespace": SimpleNamespace(a=SimpleNamespace(b=HIDDEN)),
    "module": torch.nn.ParameterDict({"a": HIDDEN}),
    "key": {HIDDEN: 1},
    "key in a tuple": {(0, HIDDEN): 1},
    "object in a list in an object": Plain([Slotted({"x": HIDDEN})]),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_is_found(place: str) -> None:
    leaves = [leaf for _, leaf in walk({"payload": PLACES[place]})]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert [torch.equal(leaf, HIDDEN) for leaf in tensors] == [True]


def test_paths_read_like_code() -> None:
    payload = {"model": {"a.weight": HIDDEN}, "loops": [Plain({"x": HIDDEN})], "epoch": 3}
    paths = [path for path, _ in walk(payload)]
    assert paths == ["model['a.weight']", "loops[0].inner['x']", "epoch"]


def test_a_tensor_as_a_key_does_not_print_its_values() -> None:
    key, value = [path for path, _ in walk({"state": {torch.arange(9.0): HIDDEN}})]
    assert "tensor" not in key and len(key) < 30
    assert key != value


def test_tied_tensors_are_two_leaves() -> None:
    assert [path for path, _ in walk({"a": HIDDEN, "b": HIDDEN})] == ["a", "b"]


def test_cycles_end() -> None:
    node: dict[str, Any] = {"x": HIDDEN}
    node["self"] = node
    other = Plain(node)
    node["other"] = other
    # Where they do not, the tests still do.
    assert [path for path, _ in islice(walk(node), 50)] == ["x"]
    assert [path for path, _ in islice(containers(other), 50)] == [".inner"]


def test_an_object_that_is_shared_is_entered_once() -> None:
    shared = Plain(HIDDEN)
    assert len(list(walk([shared, shared, shared]))) == 1
    assert len(list(containers([{"a": 1}] * 3))) == 1


def test_no_depth_is_too_deep() -> None:
    node: Any = HIDDEN
    for _ in range(3000):
        node = [node]
    ((path, leaf),) = walk(node)
    assert leaf is HIDDEN
    assert path.count("[0]") == 3000


def test_tensors_and_strings_are_not_entered() -> None:
    tagged = torch.arange(2.0)
    tagged.note = {"a": 1}  # type: ignore[attr-defined]
    assert [leaf for _, leaf in walk([tagged, "text", b"bytes"])] == [tagged, "text", b"bytes"]
    assert list(containers(tagged)) == []


def test_containers_come_outer_ones_first() -> None:
    payload = {"a": {"deep": {"x": 1}}, "b": Plain({"y": 2}), "c": [Counter("z")]}
    paths = [path for path, _ in containers(payload)]
    assert paths[:2] == ["", "a"] and paths[-1] != "a"
    assert set(paths) == {"", "a", "a['deep']", "b.inner", "c[0]"}


def test_a_long_list_of_numbers_takes_no_time() -> None:
    """A sampler's order of a whole data set is in many checkpoints."""
    payload = {"sampler": Plain(list(range(400_000)))}
    start = time.perf_counter()
    assert [path for path, _ in containers(payload)] == [""]
    assert time.perf_counter() - start < 5
