"""What an archive keeps: structure that no value changes, digests that no topology does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.checkpoint import find_parts
from pytest_cplife.evidence.records import ValueRecord
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.evidence.summary import digests, structure
from tests.rules.builders import Lab


def payload(**changes: Any) -> dict[str, Any]:
    entries = {"exp_avg": torch.ones(2), "step": torch.tensor(3.0)}
    group = {"lr": 0.1, "params": ["w"]}
    return {
        "model": {"w": torch.ones(2), "b": torch.ones(1)},
        "ema": {"w": torch.ones(2), "b": torch.ones(1)},
        "optimizer": {"state": {"w": entries}, "param_groups": [group]},
        "global_step": 3,
        **changes,
    }


def parts(**changes: Any) -> dict[str, str]:
    return structure(find_parts(payload(**changes), ["w", "b"]))


def numbered() -> dict[str, Any]:
    group = {"lr": 0.1, "params": [0]}
    return {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [group]}


def test_every_part_is_named() -> None:
    assert parts() == {
        "entry model": "mapping",
        "entry ema": "mapping",
        "entry optimizer": "mapping",
        "entry global_step": "int",
        "model's place": "* in model",
        "model w": "torch.float32",
        "model b": "torch.float32",
        "average w": "torch.float32",
        "average b": "torch.float32",
        "optimizer 0 keys": "names",
        "optimizer 0 w[exp_avg]": "torch.float32",
        "optimizer 0 w[step]": "torch.float32",
        "optimizer 0 group 0 lr": "present",
        "optimizer 0 group 0 params": "present",
        "counter global_step": "int",
    }


def test_values_and_shapes_are_no_structure() -> None:
    assert parts(model={"w": torch.zeros(7, 2), "b": torch.ones(1)}, global_step=9) == parts()


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"extra": [1]}, {"entry extra": "list"}),
        ({"model": {"w": torch.ones(2).half(), "b": torch.ones(1)}}, {"model w": "torch.float16"}),
        (
            {"model": {"module.w": torch.ones(2), "module.b": torch.ones(1)}},
            {"model's place": "module.* in model"},
        ),
        ({"optimizer": numbered()}, {"optimizer 0 keys": "numbers"}),
    ],
)
def test_a_change_of_the_format_is_seen(changes: dict[str, Any], seen: dict[str, str]) -> None:
    assert seen.items() <= parts(**changes).items()
    assert not seen.items() <= parts().items()


def state(lab: Lab, *, whole: bool = False, **more: Any) -> dict[str, dict[str, str]]:
    lay = lab.replicated if whole else lab.sharded
    seen = lab.snapshots(
        parameters={"w": lay([1.0, 2.0, 3.0])},
        buffers={"kept": lab.plain([1.0]), "made anew": lab.plain([2.0])},
        persistent=("w", "kept"),
        state={"w": {"exp_avg": lay([4.0, 5.0, 6.0]), "count": [ValueRecord("int", "3")] * 4}},
        **more,
    )
    return digests(lab.run("saving", {"m": seen}).at("m"), lab.assembler)


def test_digests_are_those_of_full_tensors(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    two = state(Lab(store))
    assert two == state(Lab(store, "dp=2,cp=2")) == state(Lab(store), whole=True)
    assert two["weights"] == {"w": store.put(torch.tensor([1.0, 2.0, 3.0]))}
    assert two["buffers"].keys() == {"kept"}
    assert two["optimizer state"]["w[count]"] == "int 3"
    assert two["averages"] == {}
    assert state(Lab(store), ema={"w": Lab(store).sharded([7.0])})["averages"].keys() == {"w"}
