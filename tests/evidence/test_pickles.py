"""What a checkpoint's pickles would execute, told without executing it."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_cplife.evidence.pickles import pickled_files
from pytest_cplife.scenarios.marking import Keepsake, Mark, forget, ran


def test_plain_data_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"model": {"w": torch.ones(2)}, "step": 3}, path)
    (found,) = pickled_files(path)
    assert (found.name, found.foreign, found.refusal) == ("", (), "")


def test_objects_are_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"kept": Keepsake(1, "text"), "mark": Mark("of the test")}, path)
    forget("of the test")
    (found,) = pickled_files(path)
    home = "pytest_cplife.scenarios.marking"
    assert set(found.foreign) == {f"{home}.Keepsake", f"{home}.leave_mark"}
    assert not ran("of the test")


def test_each_file_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    torch.save({"step": 3}, tmp_path / "inside" / "rank-0.pt")
    torch.save({"path": tmp_path}, tmp_path / "common.pt")
    (tmp_path / "manifest.json").write_text("{}")
    found = {file.name: file.foreign for file in pickled_files(tmp_path)}
    assert set(found) == {"inside/rank-0.pt", "common.pt"}
    assert found["inside/rank-0.pt"] == ()
    assert any("pathlib" in name for name in found["common.pt"])


def test_what_cannot_be_told_is_a_refusal(tmp_path: Path) -> None:
    """An archive that torch did not write."""
    import zipfile

    path = tmp_path / "file.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("anything", "else")
    (found,) = pickled_files(path)
    assert found.refusal
