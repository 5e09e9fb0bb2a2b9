"""Chunks read straight from the files: the same values as torch's reader gives, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_cplife.reference_impl import atomic
from pytest_cplife.reference_impl.agreement import CheckpointError
from pytest_cplife.reference_impl.dcp_metadata import CheckedReader, read_metadata
from pytest_cplife.reference_impl.direct_reader import DirectReader
from pytest_cplife.reference_impl.shard_files import COMMON, rank_file
from pytest_cplife.reference_impl.sharded import DCP
from pytest_cplife.reference_impl.skeleton import MARK
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

VALUES: dict[str, Callable[[], Tensor]] = {
    "matrix": lambda: torch.randn(7, 5),
    "scalar": lambda: torch.tensor(2.5),
    "one": lambda: torch.tensor([3]),
    "empty": lambda: torch.empty(0, 4),
    "bf16": lambda: torch.randn(3, 3).bfloat16(),
    "bool": lambda: torch.tensor([True, False, True]),
    "complex": lambda: torch.randn(2, 3, dtype=torch.complex64),
    "float8": lambda: torch.randn(5).to(torch.float8_e4m3fn),
    "view of a larger one": lambda: torch.arange(100.0)[10:20],
}


def build(path: Path, tensors: dict[str, Tensor]) -> None:
    """A checkpoint directory whose tensors are written with the strides that they have."""
    folder = atomic.begin(path)
    save(dict(tensors), storage_writer=FileSystemWriter(folder), no_dist=True)
    torch.save({key: {MARK: key} for key in tensors}, folder / COMMON)
    torch.save({}, folder / rank_file(0))
    atomic.publish(folder, path, atomic.seal(folder.iterdir()), world_size=1, objects=False)


def loaded(path: Path, *names: str) -> dict[str, Tensor]:
    state: dict[str, Any] = dict.fromkeys(names)
    DCP.load(state, path)
    return state


@pytest.mark.parametrize("name", VALUES)
def test_every_kind_of_tensor_comes_back(name: str, tmp_path: Path) -> None:
    value = VALUES[name]()
    DCP.save({"before": torch.ones(3), "it": value, "after": torch.ones(2)}, tmp_path / "c")
    found = loaded(tmp_path / "c", "before", "it", "after")
    assert found["it"].dtype == value.dtype
    found_bytes, bytes_ = (t.reshape(-1).view(torch.uint8) for t in (found["it"], value))
    assert torch.equal(found_bytes, bytes_)
    assert found["it"].shape == value.shape
    assert torch.equal(found["after"], torch.ones(2))


def test_a_transposed_tensor_is_written_in_order(tmp_path: Path) -> None:
    value = torch.randn(4, 6).t()
    DCP.save({"it": value}, tmp_path / "c")
    assert torch.equal(loaded(tmp_path / "c", "it")["it"], value)


def test_a_version_that_kept_strides_is_read_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = torch.randn(4, 6).t()
    monkeypatch.setattr(atomic, "FORMAT_VERSION", 1)
    build(tmp_path / "old", {"it": value})
    monkeypatch.undo()
    assert torch.equal(loaded(tmp_path / "old", "it")["it"], value)
    # What the version protects from: this file says that it is of the present one.
    build(tmp_path / "lying", {"it": value})
    assert not torch.equal(loaded(tmp_path / "lying", "it")["it"], value)


def test_other_cuts_and_strides_give_what_torch_gives(tmp_path: Path) -> None:
    launcher = make_launcher("processes", timeout=60.0)
    try:
        launcher.world(2).run(_saving, tmp_path / "c")
        launcher.world(3).run(_comparing, tmp_path / "c")
    finally:
        launcher.close()


def _values(rank: Rank, dim: int) -> dict[str, Tensor]:
    mesh = rank.mesh(MeshSpec.parse(f"fsdp={rank.world_size}"))
    torch.manual_seed(4)
    whole = {"wide": torch.randn(5, 11), "long": torch.randn(13, 2), "flat": torch.randn(7)}
    return {
        name: distribute_tensor(value, mesh, [Shard(min(dim, value.ndim - 1))])
        for name, value in whole.items()
    }


def _saving(rank: Rank, path: Path) -> None:
    DCP.save(dict(_values(rank, dim=0)), path)


def _comparing(rank: Rank, path: Path) -> None:
    metadata = read_metadata(path)
    for dim in (0, 1):
        wanted = _values(rank, dim)
        for reader in (DirectReader(path, metadata), CheckedReader(path, metadata)):
            targets: dict[str, Any] = {key: torch.zeros_like(v) for key, v in wanted.items()}
            load(targets, storage_reader=reader, no_dist=True)
            for key, value in wanted.items():
                assert torch.equal(targets[key].to_local(), value.to_local()), (dim, key, reader)


@pytest.mark.parametrize(
    ("there", "instead", "message"),
    [
        (b"little", b"bigend", "bigend-endian"),  # the same length, in the record of its own
        (b"archive/data/0", b"archive/data/1", "no archive of one tensor"),
    ],
)
def test_a_chunk_of_another_kind_is_refused(
    there: bytes, instead: bytes, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    DCP.save({"it": torch.ones(3)}, folder)
    (data,) = folder.glob("*.distcp")
    content = data.read_bytes()
    assert there in content
    data.write_bytes(_with_checksum(content.replace(there, instead)))
    metadata = read_metadata(folder)
    with pytest.raises(CheckpointException, match=message):
        load({"it": torch.zeros(3)}, storage_reader=DirectReader(folder, metadata), no_dist=True)


def _with_checksum(content: bytes) -> bytes:
    """The archive with the checksum of its changed record mended, where there is one."""
    import zlib

    old, new = (zlib.crc32(text).to_bytes(4, "little") for text in (b"little", b"bigend"))
    return content.replace(old, new)


def test_a_chunk_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    DCP.save({"it": torch.ones(3)}, folder)
    metadata = read_metadata(folder)
    entry: Any = metadata.state_dict_metadata["it"]
    entry.size = torch.Size([5])
    entry.chunks[0].sizes = torch.Size([5])
    with pytest.raises(CheckpointException, match=r"'it' has 12 bytes for torch.Size\(\[5\]\)"):
        load({"it": torch.zeros(5)}, storage_reader=DirectReader(folder, metadata), no_dist=True)


def test_damage_is_told_as_damage_and_nothing_is_changed(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    DCP.save({"it": torch.ones(300)}, folder)
    (data,) = folder.glob("*.distcp")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    state = {"it": torch.zeros(300)}
    with pytest.raises(CheckpointError, match=rf"{data.name} is damaged"):
        DCP.load(state, folder)
    assert not state["it"].any()
