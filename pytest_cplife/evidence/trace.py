"""What a trainer does at each optimizer step, seen through public hooks without its help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.observe import flat_values, view_tensor
from pytest_cplife.evidence.records import Record, TensorRecord, stranger
from pytest_cplife.evidence.store import TensorStore


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One call of one optimizer's ``step()``, as seen just before it.

    Attributes:
        optimizer: position of the optimizer in the run.
        gradients: by FQN, of the parameters that have one; see `stranger` for other tensors.
        without_gradient: trainable parameters that have none.
        hyperparameters: for each group every value in force, such as the lr really used.
        global_step: the run's own counter at that time.
    """

    optimizer: int
    gradients: dict[str, TensorRecord]
    without_gradient: tuple[str, ...]
    hyperparameters: tuple[dict[str, Record], ...]
    global_step: int


@dataclass(slots=True)
class StepTrace:
    """The steps of one stretch of training on one rank."""

    steps: list[StepRecord] = field(default_factory=list)


@contextmanager
def tracing(run: TrainingRun, store: TensorStore, *, values: bool = True) -> Iterator[StepTrace]:
    """Record every optimizer step made inside the block; `values` as for `Recorder.train`."""
    trace = StepTrace()
    names = {id(tensor): name for name, tensor in reversed(list(run.named_parameters()))}

    def hook(position: int) -> Any:
        def before(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
            with torch.no_grad():
                # Digests tell everything but a difference's size, which only the first step's
                # gradients are asked for: the rest need not fill the disk.
                keep = values and all(step.optimizer != position for step in trace.steps)
                trace.steps.append(_look(position, optimizer, names, run, store, keep))

        return before

    handles = [
        optimizer.register_step_pre_hook(hook(position))
        for position, optimizer in enumerate(run.optimizers)
    ]
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def _look(
    position: int,
    optimizer: torch.optim.Optimizer,
    names: dict[int, str],
    run: TrainingRun,
    store: TensorStore,
    keep: bool,
) -> StepRecord:
    gradients: dict[str, TensorRecord] = {}
    without: list[str] = []
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            name = names.get(id(tensor), stranger(tensor.shape))
            if tensor.grad is not None:
                gradients[name] = view_tensor(tensor.grad, store, keep=keep)
            elif tensor.requires_grad:
                without.append(name)
    return StepRecord(
        optimizer=position,
        gradients=gradients,
        without_gradient=tuple(without),
        hyperparameters=tuple(
            flat_values({k: v for k, v in group.items() if k != "params"}, store)
            for group in optimizer.param_groups
        ),
        global_step=int(run.global_step),
    )
