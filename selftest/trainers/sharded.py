"""FSDP2 with distributed checkpoints as well: torch's own format, made safe around its edges.

torch.distributed.checkpoint has no checksums and reads into the tensors it is given, so the
files are checked before anything is read, and what is read into are copies.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.agreement import on_rank_zero
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from pytest_cplife.adapter import PendingSave

REST = "run.pt"
"""What is no tensor, and the checksums of the tensor files."""


class Pending:
    """A save whose tensors are being written."""

    def __init__(self, run: Sharded, written: Future[Any], publish: Callable[[], None]) -> None:
        self._run = run
        self._written = written
        self._publish = publish
        self._error: RuntimeError | None = None
        self.ended = False

    def result(self) -> None:
        if not self.ended:
            self.ended = True
            try:
                self._end()
            except RuntimeError as error:
                self._error = error
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        try:
            self._written.result()
        except CheckpointException as error:
            raise RuntimeError(f"cannot write the checkpoint: {error}") from error
        on_rank_zero(self._run.ctx, self._publish)


class Sharded(fsdp2.Fsdp2Run):
    """Adds `save_sharded` and `load_sharded`, and a save in the background."""

    writers: dist.ProcessGroup | None = None
    pending: Pending | None = None

    def save_sharded(self, path: Path) -> None:
        unfinished = path.with_name(f"{path.name}.unfinished")
        on_rank_zero(self.ctx, lambda: self.prepare(path, unfinished))
        self.write_tensors(unfinished)
        on_rank_zero(self.ctx, lambda: self.publish(unfinished, path, self.sharded_rest()))

    def save_sharded_async(self, path: Path) -> PendingSave:
        if self.pending is not None and not self.pending.ended:
            self.pending.result()
        unfinished = path.with_name(f"{path.name}.unfinished")
        on_rank_zero(self.ctx, lambda: self.prepare(path, unfinished))
        rest = self.sharded_rest()
        written = self.begin_tensors(unfinished)
        self.pending = Pending(self, written, lambda: self.publish(unfinished, path, rest))
        return self.pending

    def begin_tensors(self, folder: Path) -> Future[Any]:
        """Copy the tensors, and write them in a thread that has a group to itself."""
        if self.writers is None and not self.ctx.serial:
            self.writers = dist.new_group(backend="gloo")
        future = dcp.async_save(
            self.sharded_tensors(), checkpoint_id=folder, process_group=self.writers
        )
        assert isinstance(future, Future)
        return future

    def prepare(self, path: Path, unfinished: Path) -> None:
        """Remove what an earlier save has not finished, and complete what it nearly had."""
        shutil.rmtree(unfinished, ignore_errors=True)
        if not path.exists() and older(path).exists():
            older(path).rename(path)

    def write_tensors(self, folder: Path) -> None:
        try:
            dcp.save(self.sharded_tensors(), checkpoint_id=folder)
        except CheckpointException as error:
            # No Exception by its class, it would pass by every handler of a caller.
            raise RuntimeError(f"cannot write {folder}: {error}") from error

    def publish(self, unfinished: Path, path: Path, rest: Mapping[str, Any]) -> None:
        """Complete the folder, and exchange it for the one at `path`."""
        torch.save({**rest, "checksums": checksums(unfinished)}, unfinished / REST)
        shutil.rmtree(older(path), ignore_errors=True)
        if path.exists():
            path.rename(older(path))
        unfinished.rename(path)
        shutil.rmtree(older(path), ignore_errors=True)

    def load_sharded(self, path: Path) -> None:
        if not path.exists():
            path = older(path)  # a save was stopped between its two renames
        rest = torch.load(path / REST, weights_only=True)
        self.verify(path, rest)
        tensors = self.template(rest["layout"])
        self.read(tensors, path)
        self.put(tensors, rest)

    def sharded_tensors(self) -> dict[str, Any]:
        """The live tensors, by name."""
        state = {name: dict(entries) for name, entries in self.named_optimizer_state().items()}
        return {"model": self.model.state_dict(), "optimizer": state}

    def sharded_rest(self) -> dict[str, Any]:
        (optimizer,) = self.optimizers
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        layout = {
            name: {key: bool(value.dim()) for key, value in entries.items()}
            for name, entries in self.named_optimizer_state().items()
        }
        return {
            "groups": groups,
            "layout": layout,
            "schedulers": [copy.deepcopy(each.state_dict()) for each in self.schedulers],
            **self.counters(),
        }

    def verify(self, path: Path, rest: Mapping[str, Any]) -> None:
        found = checksums(path)
        if found != rest["checksums"]:
            wrong = sorted(k for k, v in rest["checksums"].items() if found.get(k) != v)
            raise ValueError(f"damaged or missing files: {wrong}")

    def read(self, tensors: dict[str, Any], path: Path) -> None:
        try:
            dcp.load(tensors, checkpoint_id=path)
        except CheckpointException as error:
            # No Exception by its class, it would pass by every handler of a caller.
            raise RuntimeError(f"cannot read {path}: {error}") from error

    def template(self, layout: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
        """Tensors to read into: laid out like the live ones, but not they."""
        parameters = dict(self.model.named_parameters())
        model = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        state = {
            name: {
                key: torch.zeros_like(parameters[name]) if like_parameter else torch.zeros(())
                for key, like_parameter in entries.items()
            }
            for name, entries in layout.items()
        }
        return {"model": model, "optimizer": state}

    def put(self, tensors: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Take over what was read."""
        (optimizer,) = self.optimizers
        self.model.load_state_dict(tensors["model"])
        optimizer.state.clear()
        parameters = dict(self.model.named_parameters())
        for name, entries in tensors["optimizer"].items():
            optimizer.state[parameters[name]] = {k: detached(v) for k, v in entries.items()}
        for group, saved in zip(optimizer.param_groups, rest["groups"], strict=True):
            group.update(saved)
        for scheduler, state in zip(self.schedulers, rest["schedulers"], strict=True):
            scheduler.load_state_dict(state)
        self.restore_counters(rest)
        self.seed()


def older(path: Path) -> Path:
    """Where the checkpoint at `path` is while a newer one takes its place."""
    return path.with_name(f"{path.name}.older")


def detached(value: Tensor) -> Tensor:
    return value.detach()


def checksums(path: Path) -> dict[str, str]:
    """A digest of each of torch's files below `path`."""
    files = [file for file in path.iterdir() if file.name != REST]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


class Adapter(fsdp2.Adapter):
    meshes = ("fsdp=1", "fsdp=2", "fsdp=2,tp=2")
    run_class = Sharded
