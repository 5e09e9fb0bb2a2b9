"""Faults that only a large model shows: every rank holds all of it for a while."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2, sharded, tp_only
from pytest_cplife.selftest.trainers.named_state import place_like, plain


@plant(tp_only.Adapter, rule="MEM-01", subject="rank 1", mesh="tp=2")
class GathersEverywhere(tp_only.TpRun):
    """The whole state is gathered on all ranks, of which one writes it."""

    def export_model(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in self.model.state_dict().items()}

    def save(self, path: Path) -> None:
        state = self.named_optimizer_state()
        whole = {name: {k: plain(v) for k, v in state[name].items()} for name in state}
        super().save(path)
        del whole


@plant(fsdp2.Adapter, rule="MEM-02", subject="rank 1", mesh="fsdp=2")
class ReadsItAllEverywhere(fsdp2.Fsdp2Run):
    """Each rank reads the whole file into memory of its own."""

    def read_file(self, path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=True)


@plant(sharded.Adapter, rule="MEM-03", subject="rank 1", mesh="fsdp=2")
class ShardsAfterwards(sharded.Sharded):
    """The template is of whole tensors, and is cut once it is filled."""

    def template(self, layout: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
        return _mapped(super().template(layout), lambda value: plain(value))

    def put(self, tensors: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        live = super().template(rest["layout"])
        super().put(_cut(tensors, live), rest)


def _mapped(tree: Any, change: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _mapped(value, change) for key, value in tree.items()}
    return change(tree)


def _cut(tree: Any, like: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _cut(value, like[key]) for key, value in tree.items()}
    return place_like(tree, like)
