"""From the distributed checkpoint to the plain file and back; no process group, no model."""

from __future__ import annotations

import argparse
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from . import atomic
from .checkpoint import read_plain, write_file
from .dcp_metadata import CheckedReader, read_metadata
from .formats import FORMAT, FORMAT_VERSION
from .shard_files import COMMON, rank_file
from .shard_writer import write_shards
from .skeleton import join


def sharded_to_plain(path: Path, out: Path) -> None:
    """Write the distributed checkpoint `path` as the plain file `out`. One process.

    Raises:
        FileNotFoundError, ValueError: the checkpoint is not whole; the message names the file.
    """
    manifest = atomic.read_manifest(path)
    atomic.verify(path, manifest, manifest["files"])
    restricted = not manifest["objects"]
    metadata = read_metadata(path)
    tensors: dict[str, Tensor] = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    load(tensors, storage_reader=CheckedReader(path, metadata), no_dist=True)
    tree = join(torch.load(path / COMMON, map_location="cpu", weights_only=restricted), tensors)
    model = OrderedDict(tree["model"])
    model._metadata = tree["model.versions"]  # type: ignore[attr-defined]
    ranks = [
        torch.load(path / rank_file(rank), map_location="cpu", weights_only=restricted)
        for rank in range(manifest["world_size"])
    ]
    payload = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": model,
        "optimizers": [tree["optimizer"]],
        "ema": tree["ema"],
        **tree["run"],
        "streams": [rank["streams"] for rank in ranks],
    }
    write_file(out, payload)


def plain_to_sharded(path: Path, out: Path) -> None:
    """Write the plain file `path` as the distributed checkpoint `out`. One process."""
    payload = read_plain(path)
    apart = ("format", "format_version", "model", "optimizers", "ema", "streams")
    tree: dict[str, Any] = {
        "model": dict(payload["model"]),
        "model.versions": dict(getattr(payload["model"], "_metadata", {})),
        "optimizer": payload["optimizers"][0],
        "ema": payload["ema"],
        "run": {key: value for key, value in payload.items() if key not in apart},
    }
    # One process writes one rank's values. Streams of more ranks have no place then, and a
    # resume draws fresh ones, as it does whenever the number of ranks has changed.
    streams = payload["streams"]
    own = {"streams": streams[0]} if len(streams) == 1 else {}
    write_shards(lambda: (tree, own), out)


def main() -> None:
    """``python -m pytest_cplife.reference_impl.convert SOURCE OUT``"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a plain file or a distributed checkpoint")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    (sharded_to_plain if given.source.is_dir() else plain_to_sharded)(given.source, given.out)


if __name__ == "__main__":
    main()
