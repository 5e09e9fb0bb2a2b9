"""Distributed checkpoints: every rank writes its shards, any topology reads them.

The tensors go through :mod:`torch.distributed.checkpoint`, whose layout and resharding are
right. Around it: a directory that appears whole (`atomic`), a checked ``.metadata``
(`dcp_metadata`), state that is not tensors outside of DCP's byte items (which execute code
when they are read), and values of each rank under a name of their own: under one key DCP
keeps one rank's for all.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .checkpoint import commit_model, stage_model
from .optimizer_state import commit_optimizer, export_optimizer, stage_optimizer
from .plain import map_leaves, outside_inference
from .shard_files import read_shards
from .shard_writer import write_shards
from .skeleton import PerRank as PerRank
from .skeleton import split

T = TypeVar("T")


class DCP:
    """Save and load mappings of models, optimizers and state; collective."""

    @staticmethod
    @outside_inference
    def save(state: Mapping[str, Any], checkpoint_id: Path | str) -> None:
        """Write `state` to the directory `checkpoint_id`, which appears when it is whole.

        Args:
            state: modules, optimizers of these modules, objects with ``state_dict``, nested
                containers of tensors and values, and `PerRank` values.
        """
        write_shards(partial(_export, state), Path(checkpoint_id))

    @staticmethod
    @outside_inference
    def load(state: MutableMapping[str, Any], checkpoint_id: Path | str) -> None:
        """Read `checkpoint_id` into `state`: live objects in place, other values replaced.

        Tensors take the layout of the live ones under the same name. `PerRank` values are
        None where the checkpoint was written by another number of ranks.

        Raises:
            CheckpointError: on every rank; nothing has been changed.
        """
        _put(state, _read(state, Path(checkpoint_id), partial(_stage, state)))

    @staticmethod
    @outside_inference
    def read(state: Mapping[str, Any], checkpoint_id: Path | str) -> dict[str, Any]:
        """What `load` would put in, laid out like the live `state`; nothing is changed.

        For a trainer that has more to check than models and optimizers before it changes any.
        """
        mine = [name for name, value in state.items() if isinstance(value, PerRank)]

        def with_own(tree: dict[str, Any], own: dict[str, Any] | None) -> dict[str, Any]:
            return tree | {name: None if own is None else own.get(name) for name in mine}

        return _read(state, Path(checkpoint_id), with_own)


class AsyncSaver:
    """Saves that go on in a thread while the training does; made and used collectively.

    What is saved is copied before `save` returns. The thread has a group of its own, so that
    its messages cannot meet the training's. One save at a time: the next waits for the last.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    @outside_inference
    def save(self, state: Mapping[str, Any], checkpoint_id: Path | str) -> None:
        """Begin a save; raises what the one before it has run into."""
        self.wait()
        now: Future[tuple[dict[str, Any], dict[str, Any]]] = Future()
        try:
            now.set_result(copied(_export(state)))
        except Exception as error:
            now.set_exception(error)  # for the thread to tell: the other ranks' wait for ours
        self._pending = self._thread.submit(
            write_shards, now.result, Path(checkpoint_id).absolute(), self._group
        )

    def wait(self) -> None:
        """Return when the last save is on the disk; raise if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def copied(tree: Any) -> Any:
    """`tree` with copies of its tensors, on the CPU, and of whatever else training may change.

    DTensors stay what they are, over tensors on the CPU: on a device the copy of a whole state
    would have to fit beside it, and would be under way still when this returns.
    """

    def copied_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().to("cpu", copy=True)
        return copy.deepcopy(leaf)

    return map_leaves(tree, copied_leaf)


def owner(state: Mapping[str, Any], optimizer: Optimizer) -> nn.Module:
    """The module of `state` whose parameters `optimizer` holds."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for value in state.values():
        if isinstance(value, nn.Module) and held <= {id(p) for p in value.parameters()}:
            return value
    raise ValueError("an optimizer's model must be in the same mapping: its state goes by FQN")


def _export(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tree that all ranks write together, and this rank's own values."""
    tree: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, PerRank):
            own[name] = value.value
        elif isinstance(value, nn.Module):
            if f"{name}.versions" in state:
                raise ValueError(
                    f"{name + '.versions'!r} is taken: it goes with the module {name!r}"
                )
            saved = value.state_dict()
            tree[name] = {**saved}
            tree[f"{name}.versions"] = dict(getattr(saved, "_metadata", {}))
        elif isinstance(value, Optimizer):
            tree[name] = export_optimizer(owner(state, value), value)
        elif hasattr(value, "state_dict"):
            tree[name] = value.state_dict()
        else:
            tree[name] = value
    return tree, own


def _read(
    state: Mapping[str, Any],
    path: Path,
    fit: Callable[[dict[str, Any], dict[str, Any] | None], T],
) -> T:
    """What `fit` makes of the tree at `path` and this rank's own values; see `read_shards`."""

    def live() -> dict[str, Tensor]:
        tensors, _ = split(_export(state)[0])
        for name, value in state.items():
            if isinstance(value, Optimizer):
                # Before the first step there is no state to lay out by: it goes by its parameter.
                for fqn, parameter in owner(state, value).named_parameters():
                    tensors[f"{name}.state.{fqn}."] = parameter
        return tensors

    def with_versions(tree: dict[str, Any], own: dict[str, Any] | None) -> T:
        for name, value in state.items():
            if isinstance(value, nn.Module) and name in tree:
                saved = OrderedDict(tree[name])
                saved._metadata = tree.get(f"{name}.versions", {})  # type: ignore[attr-defined]
                tree[name] = saved
        return fit(tree, own)

    return read_shards(path, live, with_versions)


@dataclass(frozen=True)
class _Staged:
    """What was read, after all of it was found to fit the live objects."""

    tree: dict[str, Any]
    own: dict[str, Any] | None
    modules: dict[str, Any]
    optimizers: dict[str, Any]


def _stage(state: Mapping[str, Any], tree: dict[str, Any], own: dict[str, Any] | None) -> _Staged:
    """Check what was read against every live object; changes none."""
    staged = _Staged(tree, own, {}, {})
    for name, value in state.items():
        if not isinstance(value, PerRank) and name not in tree:
            raise ValueError(f"there is no {name!r} in it, but {sorted(tree)}")
        if isinstance(value, nn.Module):
            staged.modules[name] = stage_model(value, tree[name])[0]
        elif isinstance(value, Optimizer):
            staged.optimizers[name] = stage_optimizer(owner(state, value), value, tree[name])
    return staged


def _put(state: MutableMapping[str, Any], staged: _Staged) -> None:
    """Change every live object to what was staged."""
    for name, module in staged.modules.items():
        commit_model(state[name], module)
    for name, prepared in staged.optimizers.items():
        commit_optimizer(state[name], prepared)
    for name, value in state.items():
        if isinstance(value, PerRank):
            value.value = None if staged.own is None else staged.own.get(name)
        elif name not in staged.modules and name not in staged.optimizers:
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(staged.tree[name])
            else:
                state[name] = staged.tree[name]
