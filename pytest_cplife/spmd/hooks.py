"""The hooks of the marker ``cplife``: a test's body on every rank, and the report of it."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_cplife.launchers.base import RankFailure, WorldFailure
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.spmd.outcome import ranks_text, read_error
from pytest_cplife.spmd.parcel import pack
from pytest_cplife.spmd.picture import framed, style_of, text_picture
from pytest_cplife.spmd.worlds import RanksDisagree, Round, worlds_of

MARKER = "cplife"


class RankFailed(Exception):
    """A rank failed, and its own exception did not survive the journey."""


@dataclass(frozen=True, slots=True)
class Marked:
    """What a marker asks for."""

    spec: MeshSpec
    timeout: float | None = None


_ROUND: pytest.StashKey[Round] = pytest.StashKey()
_SHOWN: pytest.StashKey[Any] = pytest.StashKey()


def marked(node: pytest.Item) -> Marked | None:
    """What the closest marker of `node` asks for; None where there is none.

    Raises:
        pytest.fail.Exception: the marker cannot be read.
    """
    mark = node.get_closest_marker(MARKER)
    if mark is None:
        return None

    def read(mesh: str | MeshSpec, *, timeout: float | None = None) -> Marked:
        return Marked(MeshSpec.parse(mesh), timeout)

    try:
        return read(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        text = str(error).removeprefix("marked.<locals>.read() ")
    pytest.fail(
        f"@pytest.mark.cplife: {text}; it is written as in "
        '@pytest.mark.cplife(mesh="dp=2,cp=2", timeout=30)',
        pytrace=False,
    )


class MarkerHooks:
    """Registered where at least one marked test was collected."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if marked(item) is None:
            return
        cls = getattr(item, "cls", None)
        plain = isinstance(item, pytest.Function) and not inspect.iscoroutinefunction(item.obj)
        if not plain or (cls is not None and issubclass(cls, unittest.TestCase)):
            # Whoever runs such a test, it would be in the pytest process, and pass there.
            pytest.fail(
                "@pytest.mark.cplife is for test functions and methods, neither async nor of "
                "unittest.TestCase",
                pytrace=False,
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        __tracebackhide__ = True
        asked = marked(pyfuncitem)
        if asked is None:
            return None
        worlds = worlds_of(pyfuncitem.config)
        world = worlds.world(asked.spec.world_size)
        parcel = pack(pyfuncitem, threads=worlds.threads)
        code = inspect.unwrap(pyfuncitem.obj).__code__
        style = style_of(pyfuncitem.config, code.co_filename, code.co_firstlineno - 1)
        done = world.run_parcel(parcel, style, asked.timeout)
        pyfuncitem.stash[_ROUND] = done
        if done.failure is None:
            done.settle()
        else:
            pyfuncitem.stash[_SHOWN] = _shown(pyfuncitem, done, done.failure, asked.spec)
            _raise(done, done.failure)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        done = item.stash.get(_ROUND, None)
        if done is None or call.when != "call":
            return report
        report.sections += done.output
        shown = item.stash.get(_SHOWN, None)
        if isinstance(report.longrepr, tuple):
            # A skip is reported where the first rank skipped, not where pytest learned of it.
            path, line = next(iter(done.ends.values())).place
            report.longrepr = (path, line, report.longrepr[2])
        elif shown is not None:
            report.longrepr = shown
        elif call.excinfo is not None and isinstance(call.excinfo.value, RanksDisagree):
            report.longrepr = text_picture(str(call.excinfo.value), *_where(item))
        return report


def _where(item: pytest.Item) -> tuple[str, int]:
    path, line, _ = item.reportinfo()
    root = item.config.invocation_params.dir
    shown = Path(path)
    if shown.is_relative_to(root):
        shown = shown.relative_to(root)
    return str(shown), (line or 0) + 1


def _shown(item: pytest.Function, done: Round, failure: WorldFailure, spec: MeshSpec) -> Any:
    """The picture of the rank to blame, under its number, and one line about each other rank."""
    first = failure.primary
    note = done.ends.get(first.rank)
    shown = None if note is None or note.kind != "failed" else note.shown
    head = f"rank {first.rank} of {done.size} on mesh {spec.option}"
    summary = "" if shown is None else f"rank {first.rank}: "
    text = _text(first)
    if done.strays:
        head = f"the ranks disagree: {done.strays}"
        summary = f"{done.strays}: "
        text = f"all ranks have to, or none\n{text}"
    if shown is None:
        shown = text_picture(text, *_where(item))
    others = failure.failures[1:]
    lines = [_line(other, first) for other in others]
    failed = {f.rank for f in failure.failures}
    quiet = [rank for rank in range(done.size) if rank not in failed]
    if quiet:
        lines.append(f"{ranks_text(quiet)} did not fail")
    sections = [("other ranks", "\n".join(lines))] if lines else []
    return framed(shown, head, sections, summary)


def _text(failure: RankFailure) -> str:
    text = failure.headline()
    if failure.traceback:
        text += f"\n{failure.traceback.rstrip()}"
    return text


def _line(other: RankFailure, first: RankFailure) -> str:
    if (other.kind, other.type_name, other.message) == (first.kind, first.type_name, first.message):
        return f"rank {other.rank} failed in the same way"
    return other.headline().partition("\n")[0]


def _raise(done: Round, failure: WorldFailure) -> NoReturn:
    """Raise the rank's own exception where possible: xfail marks and debuggers look at it."""
    __tracebackhide__ = True
    if not done.strays:
        # Where ranks are threads this is the exception itself, frames and all.
        error = failure.__cause__
        note = done.ends.get(failure.primary.rank)
        if error is None and note is not None:
            error = read_error(note)
        # Others, such as SystemExit, would end pytest.
        if isinstance(error, Exception | pytest.fail.Exception):
            raise error
    raise RankFailed(done.strays or failure.primary.headline()) from None
