"""Judging many adapters in one process, on one set of live ranks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_cplife.evidence.golden import MANIFEST
from pytest_cplife.launchers import make_launcher
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings

TIMEOUT = 60.0
"""Seconds; a run that ends takes about one."""
MEMORY = Path("/dev/shm")
ROOM = 2 * 2**30
"""Bytes that have to be free there. A session needs some ten MiB, in thousands of small files."""


def scratch() -> Path | None:
    """Where sessions work: in memory if there is room, else in the default place (None).

    On a disk a quarter of all the time would go into making and removing small files.
    """
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= ROOM else None
    except OSError:
        return None


class Bench:
    """Live ranks that sessions use one after another.

    Ranks start in a fraction of a second, and there are hundreds of sessions.
    """

    def __init__(
        self,
        launcher: str = "processes",
        device: str = "cpu",
        backend: str = "auto",
        timeout: float = TIMEOUT,
    ) -> None:
        self._settings = Settings(
            "", Path(), launcher=launcher, device=device, backend=backend, timeout=timeout
        )
        self.launcher = make_launcher(launcher, device=device, backend=backend, timeout=timeout)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self.launcher.close()

    @contextmanager
    def session(self, ref: str, earlier: str = "", profile: str = "off") -> Iterator[Session]:
        """A session for one adapter in a folder of its own.

        Args:
            earlier: the adapter whose file the session gets as a golden archive, as if it had
                been recorded by an earlier version of `ref`.
            profile: how much fuzzing is done.
        """
        with tempfile.TemporaryDirectory(dir=scratch()) as folder:
            settings = replace(self._settings, adapter=ref, workdir=Path(folder), profile=profile)
            if earlier:
                settings = replace(settings, golden=self._archive(settings, earlier))
            with Session(settings, self.launcher) as made:
                yield made

    def _archive(self, settings: Settings, earlier: str) -> Path:
        golden = settings.workdir / "golden"
        before = replace(settings, adapter=earlier, workdir=settings.workdir / "earlier")
        with Session(before, self.launcher) as old:
            path, _ = old.record_golden(golden)
        manifest = path / MANIFEST
        text = manifest.read_text()
        assert earlier in text
        manifest.write_text(text.replace(earlier, settings.adapter))
        return golden
