"""Private folders: gone with their owner, or with the next one that makes any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_cplife.launchers import folders
from pytest_cplife.launchers.folders import PREFIX, PrivateFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_by(script: str, folder: Path) -> None:
    """What a process leaves that is killed, with all that it has forked, after `script`."""
    killed = "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", script + killed], env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL


MAKES_ONE = """
from pytest_cplife.launchers.folders import PrivateFolder
folder = PrivateFolder()
(folder.path / "sub").mkdir()
(folder.path / "sub" / "file").write_text("content")
"""


def test_what_a_killed_process_has_left_is_removed_by_the_next(temporary: Path) -> None:
    left_by(MAKES_ONE, temporary)
    (left,) = temporary.glob(f"{PREFIX}*")
    mine = PrivateFolder()
    assert not left.exists()
    assert mine.path.is_dir()
    mine.remove()
    mine.remove()
    assert not list(temporary.iterdir())


def test_what_is_in_use_stays_and_so_does_what_is_anothers(temporary: Path) -> None:
    mine = PrivateFolder()
    strange = [temporary / f"{PREFIX}without-lock", temporary / f"{PREFIX}of-another-host"]
    for folder in strange:
        folder.mkdir()
    (strange[1] / ".in-use").write_text("elsewhere")
    folders._sweep.cache_clear()
    other = PrivateFolder()
    assert mine.path.is_dir() and other.path.is_dir()
    assert all(folder.is_dir() for folder in strange)
    for one in (mine, other):
        one.remove()


def test_a_fork_that_lives_keeps_the_folder_of_its_parent(temporary: Path) -> None:
    mine = PrivateFolder()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent closes its end
        os._exit(0)
    os.close(read)
    lock, mine._lock = mine._lock, None
    assert lock is not None
    os.close(lock)  # as if the owner had been killed
    folders._sweep.cache_clear()
    PrivateFolder().remove()
    assert mine.path.is_dir()
    os.close(write)
    os.waitpid(child, 0)
    folders._sweep.cache_clear()
    PrivateFolder().remove()
    assert not mine.path.exists()


def test_a_sweep_is_made_once_per_process(temporary: Path) -> None:
    PrivateFolder().remove()
    left_by(MAKES_ONE, temporary)
    PrivateFolder().remove()
    assert list(temporary.glob(f"{PREFIX}*")), "every call would pay for it"
