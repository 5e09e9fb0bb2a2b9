"""Conversions of live state, whose results are overwritten to see what they share."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import ADAPTER_CAPABILITIES, LifecycleAdapter, overridden
from pytest_cplife.evidence.observe import view_value
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.evidence.walk import walk
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, set_stage


def converted(rank: Rank, order: Order) -> None:
    """Make live state plain and overwrite the result; lay a plain tree out and look at it again."""
    stage = set_stage(rank, order)
    adapter, recorder = stage.adapter, stage.recorder
    offered = overridden(type(adapter), LifecycleAdapter, ADAPTER_CAPABILITIES)
    if "to_plain" not in offered:
        recorder.absent("capability to_plain is not offered", "before", "after", "given")
        return
    run = stage.start()
    stage.align(0)
    with recorder.phase("train"):
        run.train(1)
    tree = {
        "model": dict(run.model.state_dict()),
        "optimizer": {name: dict(entries) for name, entries in run.named_optimizer_state().items()},
    }
    recorder.moment("before", run)
    seen = _leaves(tree, recorder.store)
    with recorder.phase("to_plain"):
        plain = adapter.to_plain(tree)
    overwrite(plain)
    recorder.moment("after", run)
    recorder.fact("given", _changed(seen, _leaves(tree, recorder.store)))
    if "realign" in offered:
        with recorder.phase("realign"):
            plain = adapter.to_plain(tree)
            seen = _leaves(plain, recorder.store)
            laid_out = adapter.realign(plain, tree)
        recorder.fact("given to realign", _changed(seen, _leaves(plain, recorder.store)))
        # With the plain tree it may share what it likes, with the live one nothing.
        overwrite(laid_out)
        recorder.moment("after realign", run)
    else:
        recorder.absent("capability realign is not offered", "given to realign", "after realign")
    stage.close(run)


@torch.no_grad()
def overwrite(tree: Any) -> None:
    """Give every tensor of `tree` other values, in place."""
    for _, leaf in walk(tree):
        if isinstance(leaf, torch.Tensor):
            local = leaf.to_local() if isinstance(leaf, DTensor) else leaf
            local.logical_not_() if local.dtype == torch.bool else local.add_(3)


def _leaves(tree: Any, store: TensorStore) -> dict[str, tuple[Any, ...]]:
    """What each leaf is, by path: its class, and its value."""
    found = {}
    for path, leaf in walk(tree):
        record = view_value(leaf, store)
        value = getattr(record, "digest", None) or getattr(record, "text", "")
        found[path] = (type(leaf).__name__, value)
    return found


def _changed(before: dict[str, tuple[Any, ...]], after: dict[str, tuple[Any, ...]]) -> list[str]:
    return sorted(path for path in before if after.get(path) != before[path])
