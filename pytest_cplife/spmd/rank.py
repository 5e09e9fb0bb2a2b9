"""The rank's side: run a body, keep what it prints, and note how it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.launchers.base import Rank
from pytest_cplife.spmd.outcome import Ended, leave_note
from pytest_cplife.spmd.parcel import Parcel
from pytest_cplife.spmd.picture import Style, picture

STREAMS = ("stdout", "stderr", "log")
_LOG_FORMAT = "%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s"


@dataclass(frozen=True, slots=True)
class Site:
    """Where ranks leave notes and output, and how failures are to be shown.

    Attributes:
        folder: private to one call.
        process: the pytest process. A rank inside it prints where pytest itself listens.
    """

    folder: str
    process: int
    style: Style


def run_body(rank: Rank, parcel: Parcel, site: Site) -> Ended:
    """Run a test's body on the rank."""
    __tracebackhide__ = True

    def body() -> None:
        __tracebackhide__ = True
        function, values = parcel.open(rank)
        with pytest.MonkeyPatch.context() as patch:
            values.update(dict.fromkeys(parcel.fresh, patch))
            function(**values)

    return _watched(rank, body, site)


def run_function(rank: Rank, payload: bytes, site: Site) -> Ended:
    """Run a pickled function and its arguments on the rank."""
    __tracebackhide__ = True
    function, arguments = pickle.loads(payload)
    return run_object(rank, function, arguments, site)


def run_object(
    rank: Rank, function: Callable[..., Any], arguments: tuple[Any, ...], site: Site
) -> Ended:
    """Run a function that the rank has at hand."""
    __tracebackhide__ = True
    return _watched(rank, lambda: function(rank, *arguments), site)


def _watched(rank: Rank, body: Callable[[], Any], site: Site) -> Ended:
    __tracebackhide__ = True
    try:
        with _output(rank.rank, site):
            return Ended("passed", value=body())
    except pytest.skip.Exception as error:
        ended = Ended("skipped", str(error), _place(error))
    except pytest.xfail.Exception as error:
        ended = Ended("xfailed", str(error), _place(error))
    except BaseException as error:
        ended = Ended(
            "failed", error=_pickled(error), shown=picture(error, site.style), trace=_trace(error)
        )
        leave_note(site.folder, rank.rank, ended)
        raise
    # Returned, not raised: where all ranks do the same, nothing is wrong with their world. Noted
    # as well, because ranks that went on now wait for this one in vain.
    leave_note(site.folder, rank.rank, ended)
    return ended


@contextlib.contextmanager
def _output(rank: int, site: Site) -> Iterator[None]:
    """Send what the process prints and logs, C++ included, to the call's folder."""
    start = Path(site.folder) / f"rank{rank}"
    # A rank on another node has no such folder; what it prints goes where it always does.
    if os.getpid() == site.process or not start.parent.is_dir():
        yield
        return
    kept = [_redirect(number, name, start) for number, name in enumerate(STREAMS[:2], start=1)]
    logger, handlers = logging.getLogger(), logging.getLogger().handlers
    handler = logging.FileHandler(start.with_suffix(".log"), delay=True)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    # Those that pytest has put there would write to its terminal from here.
    logger.handlers = [handler]
    try:
        yield
    finally:
        logger.handlers = handlers
        handler.close()
        for number, (copy, name) in enumerate(zip(kept, STREAMS, strict=False), start=1):
            getattr(sys, name).flush()
            os.dup2(copy, number)
            os.close(copy)


def _redirect(number: int, name: str, start: Path) -> int:
    """Point a standard stream to a file, and return a copy of what it was."""
    getattr(sys, name).flush()
    copy = os.dup(number)
    opened = os.open(start.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(opened, number)
    os.close(opened)
    return copy


def _place(error: BaseException) -> tuple[str, int]:
    """The last line of the program's own, which is not pytest's."""
    place = ("", 0)
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not frame.f_globals.get("__name__", "").startswith("_pytest."):
            place = (frame.f_code.co_filename, line)
    return place


def _trace(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _pickled(error: BaseException) -> bytes:
    try:
        return pickle.dumps(error)
    except Exception:
        return b""
