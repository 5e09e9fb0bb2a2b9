"""Judging many adapters in one process, on one set of live ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest_cplife.session
from pytest_cplife.evidence.golden import MANIFEST
from pytest_cplife.launchers import make_launcher
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings

TIMEOUT = 60.0


class _Kept:
    """A launcher that a session cannot close."""

    def __init__(self) -> None:
        self.launcher = make_launcher("processes", timeout=TIMEOUT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.launcher, name)

    def close(self) -> None:
        """Kept for the next session."""


@contextmanager
def bench() -> Iterator[None]:
    """Inside the block all sessions share their ranks, which are ended with it.

    Ranks start in a fraction of a second, and there are hundreds of sessions.
    """
    kept = _Kept()
    made = pytest_cplife.session.make_launcher
    pytest_cplife.session.make_launcher = lambda *args, **options: kept  # type: ignore
    try:
        yield
    finally:
        pytest_cplife.session.make_launcher = made
        kept.launcher.close()


@contextmanager
def session(ref: str, earlier: str = "", profile: str = "off") -> Iterator[Session]:
    """A session for one adapter in a folder of its own.

    Args:
        profile: how much fuzzing is done.
        earlier: the adapter whose file the session gets as a golden archive, as if it had been
            recorded by an earlier version of `ref`.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(ref, Path(folder), timeout=TIMEOUT, profile=profile)
        if earlier:
            golden = Path(folder) / "golden"
            before = replace(settings, adapter=earlier, workdir=Path(folder) / "earlier")
            with Session(before) as old:
                path, _ = old.record_golden(golden)
            manifest = path / MANIFEST
            text = manifest.read_text()
            assert earlier in text
            manifest.write_text(text.replace(earlier, ref))
            settings = replace(settings, golden=golden)
        with Session(settings) as made:
            yield made
