"""Checkpoint layouts of the past, brought to the present one.

=======  =====================================================================
version  layout
=======  =====================================================================
0        ``state_dict``, ``optimizer``, ``step``: no average, schedule or streams
1        one ``optimizer`` with integer keys and one ``scheduler``
2        FQN keys, but DTensors in the payload, as one rank had them
3        plain tensors; lists of ``optimizers`` and ``schedulers``; the present
=======  =====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.tensor import DTensor

from .plain import full_without_group, map_leaves

FORMAT = "reference"
FORMAT_VERSION = 3


def format_version(payload: Mapping[str, Any]) -> int:
    """The version that a payload says or shows.

    Raises:
        ValueError: it is newer than this code, or no layout that ever was.
    """
    version = payload.get("format_version")
    if version is None:  # the first layouts did not say; a file of parameters only does not
        shown = {"state_dict": 0, "optimizer": 1, "model": FORMAT_VERSION}
        version = next((number for key, number in shown.items() if key in payload), None)
    if not isinstance(version, int):
        raise ValueError(f"not a checkpoint of this trainer: it has {sorted(map(str, payload))}")
    if version > FORMAT_VERSION:
        raise ValueError(f"format version {version}; this code reads up to {FORMAT_VERSION}")
    return version


def upgrade(payload: Mapping[str, Any], steps_per_epoch: int) -> dict[str, Any]:
    """`payload` in the present layout. Integer optimizer keys stay: only the live optimizer
    knows the order that they count.

    Raises:
        ValueError: the payload is newer, foreign, or holds shards of other ranks.
    """
    version = format_version(payload)
    # To a live tensor of the same layout, a DTensor out of a file would look like this rank's
    # shard, and it is the saving rank's.
    now: dict[str, Any] = map_leaves(dict(payload), _out_of_file)
    if version == 0:
        step = int(now.pop("step"))
        now["model"] = now.pop("state_dict")
        now["global_step"] = step
        now["epoch"], position = divmod(step, steps_per_epoch)
        now["data"] = {"epoch": now["epoch"], "position": position}
    if version <= 1:
        now["optimizers"] = [now.pop("optimizer")]
        if "scheduler" in now:
            now["schedulers"] = [now.pop("scheduler")]
    now["format_version"] = FORMAT_VERSION
    return now


def _out_of_file(leaf: Any) -> Any:
    return full_without_group(leaf) if isinstance(leaf, DTensor) else leaf
