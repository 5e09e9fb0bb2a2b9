"""What one rank sees of a run at one moment."""

from __future__ import annotations

import hashlib
import pickle
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from pytest_cplife.adapter import TrainingRun, overridden
from pytest_cplife.evidence.observe import flat_values, view_tensor
from pytest_cplife.evidence.records import GroupRecord, Record, TensorRecord, stranger
from pytest_cplife.evidence.store import TensorStore


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run on one rank.

    Attributes:
        moment: its name, such as ``"after load"``.
        rank: the rank that looked.
        parameters: by FQN in registration order; every name of a tied tensor is there.
        buffers: the same for buffers.
        persistent: names of the buffers and parameters that ``state_dict()`` has.
        optimizer_state: by parameter FQN and entry; nested entries have dotted names.
        state_names_stray: shapes of tensors whose optimizer state belongs to no live parameter.
        groups: every param group of every optimizer.
        schedulers: the flattened ``state_dict()`` of each scheduler.
        ema: the averaged weights, None where the run has none.
        rng: a digest per random stream (torch, numpy, python, cuda).
        seed: what torch's stream on the CPU was last seeded with.
        counters: ``global_step`` and ``epoch``.
        extra: `named_extra_state`, None where the run does not offer it.
        training: whether the model is in training mode.
        names_itself: whether the run says itself what its parameters or its optimizer state are.
        frozen_gradients: parameters that require no gradient and hold one that is not all zeros.
    """

    moment: str
    rank: int
    parameters: dict[str, TensorRecord]
    buffers: dict[str, TensorRecord]
    persistent: tuple[str, ...]
    optimizer_state: dict[str, dict[str, Record]]
    state_names_stray: tuple[str, ...]
    groups: tuple[GroupRecord, ...]
    schedulers: tuple[dict[str, Record], ...]
    ema: dict[str, TensorRecord] | None
    rng: dict[str, str]
    seed: int
    counters: dict[str, int]
    extra: dict[str, Record] | None
    training: bool
    names_itself: bool = False
    frozen_gradients: tuple[str, ...] = ()


def take_snapshot(moment: str, rank: int, run: TrainingRun, store: TensorStore) -> Snapshot:
    """Look at `run` without changing it: no collective, no random number, no gradient."""
    with torch.no_grad():
        parameters = dict(_named_tensors(run, "parameters"))
        names: dict[int, str] = {}
        for name, tensor in parameters.items():
            names.setdefault(id(tensor), name)
        return Snapshot(
            moment=moment,
            rank=rank,
            parameters={n: view_tensor(t, store) for n, t in parameters.items()},
            buffers={n: view_tensor(t, store) for n, t in _named_tensors(run, "buffers")},
            persistent=_persistent(run.model),
            optimizer_state={
                name: flat_values(entries, store) if entries else {}
                for name, entries in run.named_optimizer_state().items()
            },
            state_names_stray=_strays(run, names),
            groups=_groups(run, names, store),
            schedulers=tuple(
                flat_values(scheduler.state_dict(), store) for scheduler in run.schedulers
            ),
            ema=None
            if run.ema is None
            else {name: view_tensor(tensor, store) for name, tensor in run.ema.items()},
            rng=rng_digests(),
            seed=torch.initial_seed(),
            counters={"global_step": int(run.global_step), "epoch": int(run.epoch)},
            extra=_extra(run, store),
            training=run.model.training,
            names_itself=bool(
                overridden(type(run), TrainingRun, ("named_parameters", "named_optimizer_state"))
            ),
            frozen_gradients=tuple(name for name, t in parameters.items() if _left_over(t)),
        )


def module_tensors(model: torch.nn.Module, what: str) -> dict[str, torch.Tensor]:
    """`named_parameters` or `named_buffers`, with every name of a tied tensor."""
    return dict(getattr(model, f"named_{what}")(remove_duplicate=False))


def _named_tensors(run: TrainingRun, what: str) -> list[tuple[str, torch.Tensor]]:
    if what == "parameters" and type(run).named_parameters is not TrainingRun.named_parameters:
        return list(run.named_parameters())
    return list(module_tensors(run.model, what).items())


def _left_over(tensor: torch.Tensor) -> bool:
    """Whether a frozen parameter holds a gradient that is more than room for one."""
    if tensor.requires_grad or tensor.grad is None:
        return False
    local = tensor.grad.to_local() if isinstance(tensor.grad, DTensor) else tensor.grad
    return local.device.type != "meta" and bool((local.to_dense() != 0).any())


def _persistent(model: torch.nn.Module) -> tuple[str, ...]:
    # keep_vars: no detached copies are made, and hooks that gather are the trainer's own affair.
    buffers = module_tensors(model, "buffers")
    dropped = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }
    return tuple(
        name for name in (*module_tensors(model, "parameters"), *buffers) if name not in dropped
    )


def _strays(run: TrainingRun, names: dict[int, str]) -> tuple[str, ...]:
    if type(run).named_optimizer_state is not TrainingRun.named_optimizer_state:
        return ()
    # torch keeps state whose key it could not map to a parameter under that very key.
    return tuple(
        str(tuple(owner.shape)) if isinstance(owner, torch.Tensor) else f"under key {owner!r}"
        for optimizer in run.optimizers
        for owner in optimizer.state
        if id(owner) not in names
    )


def _groups(run: TrainingRun, names: dict[int, str], store: TensorStore) -> tuple[GroupRecord, ...]:
    groups = []
    for position, optimizer in enumerate(run.optimizers):
        for index, group in enumerate(optimizer.param_groups):
            values: dict[str, Record] = {}
            for key, value in group.items():
                if key != "params":
                    values.update(flat_values(value, store, str(key)))
            groups.append(
                GroupRecord(
                    optimizer=position,
                    index=index,
                    names=tuple(
                        names.get(id(tensor), stranger(tensor.shape)) for tensor in group["params"]
                    ),
                    values=values,
                )
            )
    return tuple(groups)


def _extra(run: TrainingRun, store: TensorStore) -> dict[str, Record] | None:
    try:
        extra = run.named_extra_state()
    except NotImplementedError:
        return None
    return flat_values(dict(extra), store) if extra else {}


def rng_digests() -> dict[str, str]:
    """One digest per global random stream of this process."""
    streams: dict[str, Any] = {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "numpy": pickle.dumps(np.random.get_state()),
        "python": pickle.dumps(random.getstate()),
    }
    # Asking for a CUDA state would initialise CUDA in a process that has not used it.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        streams["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return {name: hashlib.blake2b(raw, digest_size=8).hexdigest() for name, raw in streams.items()}
