"""Private folders in the temporary directory, of which nothing stays behind.

Whoever makes one removes it. A process that is killed cannot, nor can its ranks where they are
killed with it; then the next one that makes a folder on this machine does. A folder is in use as
long as somebody holds its lock, and forked ranks hold that of their parent with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import socket
import tempfile
from pathlib import Path

PREFIX = "cplife-"
_LOCK = ".in-use"


class PrivateFolder:
    """A fresh folder, until `remove` is called or this process and its forks are gone."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        _sweep(parent, os.getpid())
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = _take(self.path)

    def remove(self) -> None:
        """Remove it with all that is in it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _take(folder: Path) -> int | None:
    """Lock a fresh folder; None where the file system knows no locks, and nobody ever sweeps it."""
    draft = folder / f"{_LOCK}.draft"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        draft.unlink()
        return None
    os.write(lock, _host())
    # Others see it from here on, when it is locked.
    draft.rename(folder / _LOCK)
    return lock


@functools.cache
def _sweep(parent: str, process: int) -> None:
    """Remove the folders that nobody uses any more; once per process, which takes no time then."""
    for lock in Path(parent).glob(f"{PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # somebody else's, in use, or just being removed
            _remove_unused(lock)


def _remove_unused(path: Path) -> None:
    lock = os.open(path, os.O_RDWR)
    try:
        # Nodes may share the temporary directory without seeing each other's locks.
        if os.read(lock, 1024) == _host():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
    finally:
        os.close(lock)


def _host() -> bytes:
    return socket.gethostname().encode()
