"""Pytest's picture of an exception, made on the rank, where the frames are.

What is private of pytest's is used here alone: the classes that `ExceptionInfo.getrepr` returns,
which survive pickling and xdist.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprFileLocation,
    ReprTracebackNative,
    Traceback,
)


@dataclass(frozen=True, slots=True)
class Style:
    """How pytest was asked to show failures, and the function whose frames matter.

    Attributes:
        path, line: of the test function; empty shows every frame that is not hidden.
    """

    traceback: str = "auto"
    full: bool = False
    show_locals: bool = False
    verbosity: int = 0
    folder: str = ""
    path: str = ""
    line: int = 0


def style_of(config: pytest.Config, path: str = "", line: int = 0) -> Style:
    return Style(
        traceback=config.getoption("tbstyle", "auto"),
        full=config.getoption("fulltrace", False),
        show_locals=config.getoption("showlocals", False),
        verbosity=config.get_verbosity(),
        folder=str(config.invocation_params.dir),
        path=path,
        line=line,
    )


def picture(error: BaseException, style: Style) -> Any:
    """What pytest would show of `error`; None where even that fails."""
    info = pytest.ExceptionInfo.from_exception(error)
    kind = "long" if style.full or style.traceback == "auto" else style.traceback
    if isinstance(error, pytest.fail.Exception) and not error.pytrace:
        kind = "value"

    def frames(info: pytest.ExceptionInfo[BaseException]) -> Traceback:
        return _frames(info, style)

    try:
        return info.getrepr(
            funcargs=True,
            abspath=str(Path.cwd()) != style.folder,
            showlocals=style.show_locals,
            style=cast(Any, kind),
            tbfilter=False if style.full else frames,
            truncate_locals=style.verbosity <= 1,
            truncate_args=style.verbosity <= 2,
        )
    except Exception:  # a `__repr__` of the user's, a source file that has changed
        return None


def _frames(info: pytest.ExceptionInfo[BaseException], style: Style) -> Traceback:
    """From the test function on, as pytest cuts them."""
    frames = info.traceback
    if style.path:
        cut = frames.cut(path=style.path, firstlineno=style.line)
        frames = frames.cut(path=style.path) if cut == frames else cut
    frames = frames.filter(info)
    if len(frames) and _is_of(frames[-1].path, "pytest_cplife.launchers"):
        # A thread that waits in a collective is stopped in there; what matters is who called it.
        own = list(frames)
        while len(own) > 1 and _is_of(own[-1].path, "pytest_cplife.launchers", "torch"):
            own.pop()
        frames = Traceback(own)
    if style.traceback == "auto" and len(frames) > 2:
        middle = (frame.with_repr_style("short") for frame in frames[1:-1])
        return Traceback((frames[0], *middle, frames[-1]))
    return frames


def _is_of(path: Path | str, *packages: str) -> bool:
    """Whether a file is part of one of the packages, which have been imported."""
    places = (sys.modules[name].__file__ for name in packages if name in sys.modules)
    return any(Path(place).parent in Path(path).parents for place in places if place)


def framed(shown: Any, head: str, sections: list[tuple[str, str]], summary: str) -> Any:
    """`shown` under a line that names the rank, as the test's picture.

    Args:
        shown: the rank's picture, or a text.
        head: the line above it.
        sections: titles and texts below it.
        summary: what stands before the message in pytest's short summary.
    """
    top: tuple[Any, Any, Any] = (ReprTracebackNative([f"{head}\n"]), None, None)
    if isinstance(shown, ExceptionChainRepr):
        chain = list(shown.chain)
    else:
        place = getattr(shown, "reprcrash", None)
        chain = [(getattr(shown, "reprtraceback", None) or _plain(shown), place, None)]
    trace, crash, description = chain[-1]
    if crash is not None:
        named = ReprFileLocation(crash.path, crash.lineno, f"{summary}{crash.message}")
        chain[-1] = (trace, named, description)
    whole = ExceptionChainRepr([top, *chain])
    for title, text in sections:
        whole.addsection(title, text)
    return whole


def text_picture(text: str, path: str, line: int) -> Any:
    """The picture of something that has no frames in any rank."""
    crash = ReprFileLocation(path, line, text.partition("\n")[0])
    return ExceptionChainRepr([(_plain(text), crash, None)])


def _plain(text: object) -> ReprTracebackNative:
    lines = str(text).splitlines() or [""]
    return ReprTracebackNative([f"E   {lines[0]}\n", *(f"    {line}\n" for line in lines[1:])])
