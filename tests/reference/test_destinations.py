"""Where a save may go, what it leaves there when it fails, and what a damaged manifest says."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_cplife.reference_impl import atomic, checkpoint, folder, shard_writer
from pytest_cplife.reference_impl.agreement import CheckpointError
from pytest_cplife.reference_impl.resume import load_newest
from pytest_cplife.reference_impl.sharded import DCP, AsyncSaver, PerRank

from .ranks import run_serial, trainer


def save(number: int, path: Path) -> None:
    DCP.save({"n": number, "t": torch.ones(2), "mine": PerRank(number)}, path)


def number_at(path: Path) -> int:
    state: dict[str, Any] = {"n": None, "t": None, "mine": PerRank()}
    DCP.load(state, path)
    assert state["mine"].value == state["n"]
    return int(state["n"])


def names(where: Path) -> list[str]:
    return sorted(entry.name for entry in where.iterdir())


# -- other things at the path ----------------------------------------------------------


def test_what_is_no_checkpoint_is_not_replaced_by_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "results.csv").write_text("precious")
    for name in ("file", "folder"):
        with pytest.raises(CheckpointError, match=f"{name} is .*no checkpoint"):
            save(1, tmp_path / name)
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "precious"
    assert names(tmp_path / "folder") == ["results.csv"]


def test_an_empty_directory_and_a_broken_checkpoint_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save(1, tmp_path / "broken")
    (tmp_path / "broken" / atomic.MANIFEST).unlink()
    (tmp_path / "broken" / ".metadata").unlink()
    for name in ("empty", "broken"):
        save(2, tmp_path / name)
        assert number_at(tmp_path / name) == 2


def test_a_link_stays_one_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    for number in (1, 2):  # at first it points to nothing
        save(number, tmp_path / "link")
        assert number_at(tmp_path / "real") == number_at(tmp_path / "link") == number
    assert names(tmp_path) == ["link", "real"] and (tmp_path / "link").is_symlink()
    (tmp_path / "real").rename(tmp_path / ".real.old-x")  # as a kill between renames leaves it
    assert number_at(tmp_path / "link") == 2


def test_a_relative_path_is_of_the_moment_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    saver, returned = AsyncSaver(), threading.Event()
    saver._thread.submit(returned.wait)
    saver._thread.submit(os.chdir, tmp_path / "elsewhere")
    saver.save({"n": 1}, "saved")
    returned.set()
    saver.close()
    assert names(tmp_path) == ["elsewhere", "saved"]


# -- failures --------------------------------------------------------------------------


def test_a_failed_second_rename_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1, tmp_path / "saved")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if ".new-" in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="No space"):
        save(2, tmp_path / "saved")
    assert names(tmp_path) == ["saved"]
    assert number_at(tmp_path / "saved") == 1


def test_a_save_that_loses_its_peers_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, calls = shard_writer.led, []

    def second_fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("Connection closed by peer")
        return led(*args)

    monkeypatch.setattr(shard_writer, "led", second_fails)
    with pytest.raises(RuntimeError, match="peer"):
        save(1, tmp_path / "saved")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path: checkpoint.write_file(path, {"f": lambda: None}),
        lambda path: atomic.write_json(path, {"f": object()}),
    ],
)
def test_a_file_that_cannot_be_written_leaves_nothing(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    with pytest.raises((AttributeError, TypeError)):
        write(tmp_path / "file")
    assert names(tmp_path) == []


# -- damage ----------------------------------------------------------------------------


def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    save(3, path)
    whole = (path / atomic.MANIFEST).read_bytes()
    for index in range(len(whole)):
        damaged = bytearray(whole)
        damaged[index] ^= 1 << index % 7
        (path / atomic.MANIFEST).write_bytes(damaged)
        folder.is_whole(path)  # False or True, but no error
        try:
            assert number_at(path) == 3
        except CheckpointError as error:
            assert f"{path}/" in str(error), damaged  # the name of a file


def test_the_newest_is_found_whatever_the_pointer_is(tmp_path: Path) -> None:
    save(1, tmp_path / "step-1")
    for content in (b"{", b"[]", b'{"latest": 3}', b'{"last": "step-1"}', b"\xff"):
        (tmp_path / folder.POINTER).write_bytes(content)
        assert folder.latest(tmp_path) == tmp_path / "step-1"


def test_there_is_nothing_to_resume_from_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert not run_serial(resume_nothing, tmp_path / "first run")


def resume_nothing(path: Path) -> bool:
    return load_newest(trainer(""), path)


def test_what_a_kill_has_left_of_a_removal_is_removed(tmp_path: Path) -> None:
    save(1, tmp_path / "step-1")
    shutil.copytree(tmp_path / "step-1", tmp_path / ".step-0.gone-x")
    folder.retain(tmp_path, keep=1)
    assert names(tmp_path) == ["step-1"]
