"""Disks that fail and processes that die at a chosen byte or rename, in whatever they write."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cplife.scenarios.crash_faults import Renames, below, full_disk, listening
from pytest_cplife.scenarios.crash_kinds import attempt
from pytest_cplife.scenarios.crash_newest import Stuck


def python_file(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"x" * 1000)


def torch_file(path: Path) -> None:
    # By its path torch writes in C++, where no audit event tells of it.
    torch.save({"w": torch.zeros(1000)}, path)


writers = pytest.mark.parametrize("write", [python_file, torch_file])


@writers
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_full_disk_stops_every_writer(
    write: Callable[[Path], None], share: float, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole" / "w.pt", tmp_path / "cut" / "w.pt"
    for path in (whole, cut):
        path.parent.mkdir()
    write(whole)
    size = int(whole.stat().st_size * share)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with full_disk(size):
        assert attempt(lambda: write(cut))
    assert cut.stat().st_size <= size
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
    assert not attempt(lambda: write(cut))
    assert cut.read_bytes() == whole.read_bytes()


def test_a_writer_that_failed_does_not_write_later(tmp_path: Path) -> None:
    """What torch has left to write it writes when its object goes, into whatever is there then."""
    path = tmp_path / "w.pt"

    def save() -> None:
        try:
            torch_file(path)
        except RuntimeError as error:
            held = error  # a cycle: the error knows this frame, and the frame the error
            raise ValueError("told all ranks") from held

    with full_disk(1000):
        assert "told all ranks" in attempt(save)
    gc.collect()
    assert path.stat().st_size <= 1000


def test_what_is_printed_on_a_full_disk_harms_nobody(tmp_path: Path) -> None:
    """A rank's output goes to a file as well, and a print is no part of a save."""
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    kept = os.dup(1)
    os.dup2(log, 1)
    try:
        with full_disk(0):
            os.write(1, b"lost")
        os.write(1, b"told")
    finally:
        os.dup2(kept, 1)
    assert (tmp_path / "log").read_bytes() == b"told"


@writers
def test_a_deadly_disk_kills_at_the_byte(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "whole")
    size = (tmp_path / "whole").stat().st_size // 2
    child = os.fork()
    if not child:
        with full_disk(size, deadly=True):
            write(tmp_path / "cut")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ
    assert (tmp_path / "cut").stat().st_size <= size


def test_the_rename_of_that_number_fails_and_is_not_made(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).touch()
    renames = Renames(tmp_path, fail=2)
    with listening(renames, own_process=True):
        (tmp_path / "a").rename(tmp_path / "c")
        with pytest.raises(OSError, match="made by the suite"):
            (tmp_path / "b").replace(tmp_path / "d")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["b", "c"]
    (tmp_path / "b").rename(tmp_path / "d")
    assert renames.count == 2


def test_renames_elsewhere_do_not_count(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "there" / "a").touch()
    renames = Renames(tmp_path / "here", fail=1)
    with listening(renames, own_process=True):
        (tmp_path / "there" / "a").rename(tmp_path / "there" / "b")
    assert renames.count == 0


@pytest.mark.parametrize(("own_process", "heard"), [(True, 1), (False, 0)])
def test_threads_count_where_they_are_no_ranks(
    own_process: bool, heard: int, tmp_path: Path
) -> None:
    (tmp_path / "a").touch()
    renames = Renames(tmp_path)
    with listening(renames, own_process):
        thread = threading.Thread(target=lambda: (tmp_path / "a").rename(tmp_path / "b"))
        thread.start()
        thread.join()
    assert renames.count == heard


def test_a_listener_does_not_hear_itself(tmp_path: Path) -> None:
    heard = []

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            heard.append(arguments[0])
            (tmp_path / "its own").read_bytes()

    (tmp_path / "its own").touch()
    with listening(listen, own_process=True):
        (tmp_path / "the trainer's").touch()
        (tmp_path / "the trainer's").read_bytes()
    (tmp_path / "the trainer's").read_bytes()
    assert [Path(path).name for path in heard] == ["the trainer's"] * 2


def test_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = (tmp_path / "a").resolve()
    (folder / "b").mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert below(folder / "x", -1, folder)
    assert below(str(folder / "b" / "x"), -1, folder)
    assert below(b"x", -1, folder) and below("b/x", -1, folder)
    assert not below("../x", -1, folder) and not below(3, -1, folder)
    opened = os.open(folder / "b", os.O_RDONLY)
    try:
        assert below("x", opened, folder)
        assert not below("x", opened, tmp_path / "c")
    finally:
        os.close(opened)


def test_nothing_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "a").touch()
    with listening(Stuck(tmp_path), own_process=True):
        with pytest.raises(OSError, match="made by the suite"):
            (tmp_path / "step-1" / "a").unlink()
        with pytest.raises(OSError, match="made by the suite"):
            shutil.rmtree(tmp_path / "step-1")
        shutil.rmtree(tmp_path / "step-1", ignore_errors=True)
    assert (tmp_path / "step-1" / "a").exists()
