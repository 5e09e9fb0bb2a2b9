"""The plain checkpoint: one portable file of full tensors, that fits any topology.

The file is what `torch.save` writes; `torch.load(path, map_location="cpu")` reads it without
a process group and without this package. Its checksums are the CRC-32 values that every
record of the zip archive has and that torch does not look at when it loads.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .agreement import CheckpointError, agreed, gather, global_rank
from .atomic import replacing
from .formats import FORMAT, FORMAT_VERSION, format_version
from .plain import realign_tensor, to_plain


def save_plain(payload: Mapping[str, Any], path: Path) -> None:
    """Write `payload` to the file `path` with full, plain tensors. Collective.

    Rank 0 writes beside `path` and renames when everything is on the disk, so that whatever
    happens `path` is the old file or the new one.
    """
    header = {"format": FORMAT, "format_version": FORMAT_VERSION}
    writer = global_rank() == 0
    plain = to_plain({**header, **payload}, only=0)
    with agreed(f"cannot save {path}"):
        if writer:
            write_file(path, plain)


def write_file(path: Path, value: Any) -> None:
    """Replace the file `path` by what `torch.save` makes of `value`, wholly or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        torch.save(value, file)


def read_plain(path: Path) -> dict[str, Any]:
    """The payload of the file `path`, on the CPU. Collective; ranks must find the same content.

    Raises:
        CheckpointError: on every rank, if one cannot read the file or reads another.
    """
    payload: dict[str, Any] = {}
    fingerprint = 0
    with agreed(f"cannot load {path}"):
        fingerprint = verify_file(path)
        # Not weights_only: the payload holds objects by design (a trainer's own state). Map
        # location is a string, for a callable would be asked to place DTensor internals, too.
        mapped = zipfile.is_zipfile(path)
        payload = torch.load(str(path), map_location="cpu", weights_only=False, mmap=mapped)
        if not isinstance(payload, dict):
            raise ValueError(f"it holds a {type(payload).__name__}, not a checkpoint")
        format_version(payload)
    with agreed(f"cannot load {path}"):
        if len(set(gather(fingerprint))) > 1:
            raise ValueError("the ranks have read different content under this path")
    return payload


def verify_file(path: Path) -> int:
    """Check every record's checksum; a number that stands for the content."""
    if not zipfile.is_zipfile(path):
        # torch's formats of old are no archives and have no checksums; a cut archive lands
        # here too, and fails to unpickle.
        return zlib.crc32(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"record {damaged!r} is damaged (checksum)")
        records = [(item.filename, item.CRC, item.file_size) for item in archive.infolist()]
    return zlib.crc32(repr(records).encode())


@dataclass(frozen=True)
class LoadReport:
    """What a load that was not strict left out."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def stage_model(
    model: nn.Module, saved: Mapping[str, Any], strict: bool = True
) -> tuple[dict[str, Any], LoadReport]:
    """`saved` in the layout of the live model, after every check; nothing is changed yet.

    `load_state_dict` itself copies as it checks: when it raises, some parameters are new.

    Raises:
        ValueError: keys, shapes or dtypes do not fit; all of them are named.
    """
    live = model.state_dict(keep_vars=True)
    missing = tuple(key for key in live if key not in saved)
    unexpected = tuple(key for key in saved if key not in live)
    wrong = [f"missing {key!r}" for key in missing] if strict else []
    wrong += [f"unexpected {key!r}" for key in unexpected] if strict else []
    if not strict:
        wrong += _architecture_mismatch(live, saved)
    staged = type(live)()
    if hasattr(saved, "_metadata"):
        staged._metadata = saved._metadata  # type: ignore[attr-defined]
    for key, template in live.items():
        if key not in saved:
            continue
        value = saved[key]
        if isinstance(template, Tensor) and not is_extra_state(key):
            try:
                if not isinstance(value, Tensor):
                    raise ValueError(f"a {type(value).__name__}, expected a tensor")
                if value.dtype != template.dtype:  # a silent cast loses bits for good
                    raise ValueError(f"dtype {value.dtype}, expected {template.dtype}")
                value = realign_tensor(value, template, alias=True)  # only copied from
            except ValueError as error:
                wrong.append(f"{key!r}: {error}")
        staged[key] = value
    if wrong:
        raise ValueError("the model's state does not fit: " + "; ".join(wrong))
    return staged, LoadReport(missing, unexpected)


def is_extra_state(key: str) -> bool:
    """True for what a module's ``get_extra_state`` gives: only the module knows what fits."""
    return key.rpartition(".")[2] == "_extra_state"


def commit_model(model: nn.Module, staged: Mapping[str, Any]) -> None:
    """Copy a staged state into the live tensors, in place: the optimizer keeps its parameters."""
    model.load_state_dict(staged, strict=False, assign=False)


def _architecture_mismatch(live: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """A transfer may leave out or add whole top-level modules, never parts of one."""
    wrong = []
    if not any(key in live for key in saved):
        wrong.append("no key in common")
    owned = {key.partition(".")[0] for key in live}
    present = {key.partition(".")[0] for key in saved}
    for key in live:
        if key not in saved and key.partition(".")[0] in present:
            wrong.append(f"missing {key!r}, of whose module other parts are there")
    for key in saved:
        if key not in live and key.partition(".")[0] in owned:
            wrong.append(f"unexpected {key!r} in a module of this model")
    return wrong


def check_hyper_parameters(saved: Mapping[str, Any], live: Mapping[str, Any]) -> None:
    """The architecture check of a transfer load.

    Raises:
        CheckpointError: the file's model was built with other arguments.
    """
    differ = [
        f"{name}: {saved[name]!r} in the file, {live[name]!r} here"
        for name in live
        if name in saved and saved[name] != live[name]
    ]
    if differ:
        raise CheckpointError("another architecture: " + "; ".join(differ))
