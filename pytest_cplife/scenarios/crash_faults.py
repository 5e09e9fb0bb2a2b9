"""A disk that fails, or a rank that dies, in the middle of a save: made from outside.

Nothing is known of the trainer. A limit on the size of files stops every writer, also those in
C++, at a chosen byte; Python's audit events tell of renames before they are made. Of what
``torch.save`` writes to a path, which it does in C++, an event of the suite's own tells.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

FINISHING = "cplife.finishing"
"""The event before torch ends a file that it writes by path: most is there, and it is not whole."""

Listener = Callable[[str, tuple[Any, ...]], None]

_listeners: list[tuple[int | None, Listener]] = []
_inside = threading.local()
_hooked = False


@contextlib.contextmanager
def listening(listener: Listener, own_process: bool) -> Iterator[None]:
    """Inside the block `listener` gets every audit event of this rank before what it tells of.

    What it raises is raised in place of the operation. An audit hook stays for the life of the
    process, so there is one, and outside of such blocks it does nothing.

    Args:
        own_process: False where other ranks share the process; then events count that come from
            the thread that entered the block.
    """
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _announce_torchs_writer()
        _hooked = True
    entry = (None if own_process else threading.get_ident(), listener)
    _listeners.append(entry)
    try:
        yield
    finally:
        _listeners.remove(entry)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    # A listener that opens a file is not to hear of it.
    if not _listeners or getattr(_inside, "listener", False):
        return
    _inside.listener = True
    try:
        for thread, listener in list(_listeners):
            if thread in (None, threading.get_ident()):
                listener(event, arguments)
    finally:
        _inside.listener = False


def _announce_torchs_writer() -> None:
    """Have torch's writer of files tell when it is about to end one."""
    # Private, and the only place between the first byte and the last one; where a torch has none,
    # such saves are as unseen as they are without it.
    writer: Any = getattr(torch.serialization, "_open_zipfile_writer_file", None)
    if writer is None:
        return
    end = writer.__exit__

    def __exit__(self: Any, *error: Any) -> None:
        sys.audit(FINISHING, self.name)
        end(self, *error)

    writer.__exit__ = __exit__


class Renames:
    """Counts the renames to somewhere below `folder`, and lets the one numbered `fail` fail."""

    def __init__(self, folder: Path, fail: int = 0) -> None:
        self.folder = folder.resolve()
        self.fail = fail
        self.count = 0
        self._counting = threading.Lock()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "os.rename" or not below(arguments[1], arguments[3], self.folder):
            return
        with self._counting:
            self.count += 1
            number = self.count
        if number == self.fail:
            name = os.fsdecode(arguments[1])
            raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (made by the suite)", name)


def below(path: Any, opened: int, folder: Path) -> bool:
    """Whether a path, as an audit event gives it, lies below the resolved `folder`.

    Args:
        opened: the open folder that the path is relative to, -1 for the working directory.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    base = Path.cwd() if opened == -1 else Path(f"/proc/self/fd/{opened}")
    place = (base / os.fsdecode(path)).parent.resolve()
    return folder == place or folder in place.parents


@contextlib.contextmanager
def full_disk(size: int, *, deadly: bool = False) -> Iterator[None]:
    """Inside the block no file of this process grows beyond `size` bytes.

    A write beyond it raises `OSError` as on a full disk, or with `deadly` ends the process by
    SIGXFSZ on the spot. What is printed meanwhile is lost: output may go to a file, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with _without_output():
        before = signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)


@contextlib.contextmanager
def _without_output() -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in kept:
            os.dup2(null, number)
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os.close(null)
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
