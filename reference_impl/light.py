"""Parameters only, for a high cadence: gathered on rank 0, broadcast when they are read.

A file of the model's state and nothing else, for evaluation, for export, or to look back at
often; it cannot resume a run. One rank reads it: the storage sees one reader, not hundreds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from .agreement import agreed, gather, global_rank
from .checkpoint import commit_model, verify_file, write_file
from .plain import outside_inference, to_plain


def save_parameters(model: nn.Module, path: Path) -> None:
    """Write the model's full state to the file `path`. Collective."""
    plain = to_plain(model.state_dict(keep_vars=True), only=0)
    with agreed(f"cannot save {path}"):
        if global_rank() == 0:
            write_file(path, {"model": plain})


@outside_inference
def load_parameters(model: nn.Module, path: Path) -> None:
    """Read the file `path` into the model, of any topology. Collective.

    Ranks other than 0 hold one full tensor at a time. A file that does not fit changes nothing.

    Raises:
        CheckpointError: on every rank, if rank 0 cannot read the file or it does not fit.
    """
    saved: dict[str, Any] = {}
    live = model.state_dict()
    with agreed(f"cannot load {path}"):
        if global_rank() == 0:
            verify_file(path)
            # Nothing but tensors by design, so nothing but tensors is unpickled.
            saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["model"]
            shapes = {key: torch.empty_like(value, device="meta") for key, value in saved.items()}
            _check(live, shapes)
    staged: dict[str, Any] = {}
    for key, template in live.items():
        if isinstance(template, Tensor):
            staged[key] = _received(saved.get(key), template)
        else:
            staged[key] = gather(saved.get(key))[0]
    commit_model(model, staged)


def _check(live: dict[str, Any], saved: dict[str, Tensor]) -> None:
    wrong = [f"missing {key!r}" for key in live if key not in saved]
    wrong += [f"unexpected {key!r}" for key in saved if key not in live]
    wrong += [
        f"{key!r}: {value.dtype} {tuple(value.shape)}, expected {old.dtype} {tuple(old.shape)}"
        for key, value in saved.items()
        if isinstance(old := live.get(key), Tensor)
        and (value.shape != old.shape or value.dtype != old.dtype)
    ]
    if wrong:
        raise ValueError("the model's state does not fit: " + "; ".join(wrong))


def _received(value: Tensor | None, template: Tensor) -> Tensor:
    """Rank 0's `value` in the layout of `template`, on every rank."""
    if value is None:
        value = torch.empty(template.shape, dtype=template.dtype)
    if isinstance(template, DTensor):
        mesh = template.device_mesh
        return distribute_tensor(value.to(mesh.device_type), mesh, template.placements)
    value = value.to(template.device, copy=True)
    if dist.is_initialized():
        dist.broadcast(value, 0)
    return value
