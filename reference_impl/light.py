"""Parameters only, for a high cadence: gathered on rank 0, broadcast when they are read.

A file of the model's state and nothing else, for evaluation, for export, or to look back at
often; it cannot resume a run. One rank reads it: the storage sees one reader, not hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .agreement import agreed, gather, global_rank
from .checkpoint import commit_model, is_extra_state, verify_file, write_file
from .plain import outside_inference, realign_tensor, to_plain


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
            _check(live, saved)
    staged: dict[str, Any] = {}
    for key, template in live.items():
        if isinstance(template, Tensor) and not is_extra_state(key):
            staged[key] = _received(saved.get(key), template)
        else:
            staged[key] = gather(saved.get(key))[0]
    commit_model(model, staged)


def _check(live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    wrong = [f"missing {key!r}" for key in live if key not in saved]
    wrong += [f"unexpected {key!r}" for key in saved if key not in live]
    for key, value in saved.items():
        old = live.get(key)
        if isinstance(old, Tensor) and not is_extra_state(key) and _kind(value) != _kind(old):
            wrong.append(f"{key!r}: {_kind(value)}, expected {_kind(old)}")
    if wrong:
        raise ValueError("the model's state does not fit: " + "; ".join(wrong))


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _received(value: Tensor | None, template: Tensor) -> Tensor:
    """Rank 0's `value` in the layout of `template`, on every rank.

    Not `distribute_tensor` of what rank 0 has: that sends what the first rank of the mesh has,
    which is another one where a mesh does not begin with rank 0.
    """
    if value is None:
        value = torch.empty(template.shape, dtype=template.dtype)
    value = value.to(template.device, copy=True).contiguous()
    if dist.is_initialized():
        dist.broadcast(value, 0)
    return realign_tensor(value, template)
