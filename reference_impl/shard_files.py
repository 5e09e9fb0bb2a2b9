"""The files of a distributed checkpoint, read and checked; `shard_writer` writes them.

``.metadata`` and ``__R_N.distcp`` are DCP's and hold tensors only. ``state.pt`` holds what is
not a tensor and the same for all ranks, ``rank-R.pt`` what each rank has of its own;
``manifest.json`` comes last.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from . import atomic
from .agreement import agreed, first, global_rank, world_size
from .arena import empty_tensors
from .dcp_metadata import CheckedReader, read_metadata
from .direct_reader import DirectReader
from .skeleton import join
from .topology import global_dtensor

T = TypeVar("T")

COMMON = "state.pt"


def rank_file(rank: int) -> str:
    """The file of one rank's own values."""
    return f"rank-{rank:05d}.pt"


def read_shards(
    path: Path,
    live: Callable[[], Mapping[str, Tensor]],
    fit: Callable[[dict[str, Any], dict[str, Any] | None], T],
) -> T:
    """What `fit` makes of the tree at `path`, in fresh tensors, and this rank's own values.

    Collective. Ranks agree on the reading and the fitting at once.

    Args:
        path: the directory.
        live: gives, by key (or by the beginning of keys, ending in a dot), the tensors after which
            the ones of the same shape are laid out; all others become plain and full. Called
            here, where a rank on which it raises does not leave the others waiting.
        fit: told the tree, and this rank's values, None where another number of ranks wrote them.
            It may raise and must not communicate.
    """
    doing, rank = f"cannot load {path}", global_rank()

    def look() -> tuple[dict[str, Any], Any, Metadata]:
        atomic.recover(path)
        manifest = atomic.read_manifest(path)
        _check_facts(path, manifest)
        atomic.verify(path, manifest, {".metadata", COMMON})
        # Objects are there by the trainer's design or not at all; then none can be smuggled in.
        skeleton = torch.load(
            path / COMMON, map_location="cpu", weights_only=not manifest["objects"]
        )
        return manifest, skeleton, read_metadata(path)

    # One rank looks for all, so that all read the same checkpoint whatever becomes of the name.
    manifest, skeleton, metadata = first(doing, look)
    own: dict[str, Any] | None = None
    targets: dict[str, Tensor] = {}
    with agreed(doing):
        if manifest["world_size"] == world_size():
            atomic.verify(path, manifest, {rank_file(rank)})
            own = torch.load(
                path / rank_file(rank), map_location="cpu", weights_only=not manifest["objects"]
            )
        # Fresh tensors: a read that fails half way, or finds damage, has touched nothing that
        # lives. So the ranks can share the check of the data and make it while they read.
        targets = _targets(metadata, live())
        shared = sorted(name for name in manifest["files"] if name.endswith(".distcp"))
        with ThreadPoolExecutor(1) as pool:
            check = pool.submit(atomic.verify, path, manifest, shared[rank :: world_size()])
            contiguous = manifest["format_version"] >= atomic.CONTIGUOUS
            reader = (DirectReader if contiguous else CheckedReader)(path, metadata)
            failed = _fill(targets, reader)
        check.result()  # what is damaged tells more than what came of reading it
        if failed is not None:
            raise failed
        return fit(join(skeleton, targets), own)


def _check_facts(path: Path, manifest: Mapping[str, Any]) -> None:
    """Check what a manifest says of its files beyond their names: nothing else vouches for it."""
    ranks = sum(name.startswith("rank-") for name in manifest["files"])
    if manifest.get("world_size") != ranks or not isinstance(manifest.get("objects"), bool):
        raise ValueError(f"{path / atomic.MANIFEST} does not fit its files")


def _fill(targets: dict[str, Tensor], reader: CheckedReader) -> Exception | None:
    """Read this rank's part of every tensor; returns what went wrong.

    Each rank for itself, which DCP calls ``no_dist``: in a load there is nothing to tell the
    others before all have read.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(targets, storage_reader=reader, no_dist=True)
    except CheckpointException as error:  # no Exception; it holds one, of the only rank it knows
        return next(cause for cause, _ in error.failures.values() if isinstance(cause, Exception))
    except Exception as error:
        return error
    return None


def _targets(metadata: Metadata, live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Empty tensors to read into. Their dtype is the file's: into another DCP casts, silently."""
    entries: dict[str, TensorStorageMetadata] = {}
    templates: dict[str, DTensor] = {}
    # By the first name: what lies in one block is dropped together, as a model is that has been
    # copied into the live one, while an optimizer's state goes on living.
    wanted: dict[str, dict[str, tuple[Tensor, torch.dtype]]] = defaultdict(dict)
    for key, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"{key!r} is not a tensor")
        template = _counterpart(key, live)
        if isinstance(template, DTensor) and template.shape == entry.size:
            templates[key] = template
            part = template.to_local()
        else:
            part = torch.empty(entry.size, device="meta")
        entries[key] = entry
        wanted[key.partition(".")[0]][key] = (part, entry.properties.dtype)
    return {
        key: global_dtensor(part, layout.device_mesh, layout.placements, entries[key].size)
        if (layout := templates.get(key)) is not None
        else part
        for together in wanted.values()
        for key, part in empty_tensors(together).items()
    }


def _counterpart(key: str, live: Mapping[str, Tensor]) -> Tensor | None:
    if key in live:
        return live[key]
    return live.get(key.rpartition(".")[0] + ".")
