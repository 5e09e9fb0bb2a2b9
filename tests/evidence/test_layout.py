"""The layout of a sharded directory, read from one that torch has written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from pytest_cplife.evidence.layout import view_layout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    dcp.save({"w": torch.ones(5), "note": "text"}, checkpoint_id=path, no_dist=True)
    return path


def test_a_directory_as_torch_leaves_it(folder: Path) -> None:
    layout = view_layout(folder)
    assert (layout.metadata, list(layout.files)) == (1, ["__0_0.distcp"])
    assert (layout.strays, layout.absent, layout.unfinished) == ((), (), ())


def test_files_beside_those_that_the_metadata_names(folder: Path) -> None:
    (folder / "__1_0.distcp").touch()  # as of a rank that has nothing to write
    (folder / "__2_0.distcp").write_bytes(b"of another save")
    (folder / "of-the-trainer.pt").write_bytes(b"its own")
    (folder / ".metadata.tmp").write_bytes(b"unfinished")
    layout = view_layout(folder)
    assert layout.strays == ("__2_0.distcp",)
    assert layout.unfinished == (".metadata.tmp",)
    assert layout.absent == ()


def test_a_file_that_is_named_and_not_there(folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()
    assert view_layout(folder).absent == ("__0_0.distcp",)
