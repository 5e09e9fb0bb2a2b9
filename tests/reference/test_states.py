"""What a distributed checkpoint takes comes back as it was; what it cannot take is refused."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_cplife.reference_impl.agreement import CheckpointError
from pytest_cplife.reference_impl.sharded import DCP, AsyncSaver, PerRank
from torch import nn


def returned(value: Any, path: Path) -> Any:
    DCP.save({"value": value}, path)
    state: dict[str, Any] = {"value": None}
    DCP.load(state, path)
    return state["value"]


def test_a_conjugate_is_not_its_original(tmp_path: Path) -> None:
    # Conjugation and negation are flags of a view, and the bytes below are the original's.
    values = torch.randn(2, 3, dtype=torch.complex64)
    assert torch.equal(returned(values.conj(), tmp_path / "conjugate"), values.conj())
    negated = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert torch.equal(returned(negated, tmp_path / "negated"), negated)


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(b=1, a=torch.ones(2)),
        defaultdict(int, seen=3),
        Counter("abca"),
        torch.Size([2, 3]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_keep_their_types(value: Any, tmp_path: Path) -> None:
    found = returned(value, tmp_path / "saved")
    assert type(found) is type(value) and list(found) == list(value)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"nested": {"model": nn.Linear(1, 1)}}, "a Linear at 'nested.model'"),
        ({"nested": [PerRank(1)]}, "a PerRank at 'nested.0'"),
        ({"m": nn.Linear(1, 1), "m.versions": {}}, "'m.versions' is taken"),
        ({"m": {"__tensor__": 1}}, "'__tensor__' is taken"),
        ({"m": {"w": torch.ones(2, device="meta")}}, "'m.w' is on the meta device"),
        ({"m": {"w": torch.eye(2).to_sparse()}}, "'m.w' is torch.sparse_coo"),
    ],
)
def test_what_a_load_could_not_give_back_is_not_saved(
    state: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        DCP.save(state, tmp_path / "saved")
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class History:
    """What a trainer has of its own, changed by every step."""

    def __init__(self) -> None:
        self.losses = [1.0]


def test_objects_are_saved_as_they_were_when_it_was_asked_for(tmp_path: Path) -> None:
    history, saver, gate = History(), AsyncSaver(), threading.Event()
    saver._thread.submit(gate.wait)  # the thread is late
    saver.save({"history": history}, tmp_path / "saved")
    history.losses.append(0.5)
    gate.set()
    saver.close()
    state: dict[str, Any] = {"history": None}
    DCP.load(state, tmp_path / "saved")
    assert state["history"].losses == [1.0]
