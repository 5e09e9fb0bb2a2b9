"""Reading the values of options, each checked; what cannot be used is told with what can be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.mesh import MeshSpec, parse_meshes
from pytest_cplife.options.table import DEFAULTS, REPORT_SUFFIXES, Option


class Reader:
    """Reads options by name: the command line first, then the ini twin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.ini_base = config.inipath.parent if config.inipath else config.rootpath

    def given(self, option: Option) -> bool:
        """Whether it stands on the command line."""
        return self._config.getoption(option.dest) is not None

    def adapter(self) -> tuple[str, Path, bool]:
        """The adapter ("" where there is none), the folder it is meant from, and whether it stands
        on the command line."""
        value = self._config.getoption("cplife_adapter")
        if value is not None:
            return value, self._config.invocation_params.dir, True
        return self._config.getini("cplife_adapter") or "", self.ini_base, False

    def _raw(self, name: str) -> tuple[Any, Path]:
        dest = f"cplife_{name.replace('-', '_')}"
        value = self._config.getoption(dest)
        if value is not None:
            return value, self._config.invocation_params.dir
        return self._config.getini(dest), self.ini_base

    def text(self, name: str) -> str | None:
        value, _ = self._raw(name)
        return None if value is None or value == "" else str(value)

    def texts(self, name: str) -> Sequence[str]:
        return list(self._raw(name)[0] or ())

    def flag(self, name: str) -> bool:
        return bool(self._raw(name)[0])

    def path(self, name: str) -> Path | None:
        value, base = self._raw(name)
        return base / str(value) if value else None

    def choice(self, name: str, accepted: tuple[str, ...], default: str) -> str:
        found = self.text(name)
        if found is None:
            return default
        if found not in accepted:
            raise bad(name, found, " or ".join(accepted))
        return found

    def count(self, name: str) -> int | None:
        found = self.text(name)
        if found is None:
            return None
        if not found.isdecimal() or int(found) < 1:
            raise bad(name, found, "a whole number from 1")
        return int(found)

    def seconds(self, name: str, default: float) -> float:
        found = self.text(name)
        if found is None:
            return default
        try:
            value = float(found)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise bad(name, found, "a number of seconds above 0")
        return value

    def steps(self) -> tuple[int, int]:
        found = self.text("steps")
        if found is None:
            return DEFAULTS.steps
        parts = [part.strip() for part in found.split(",")]
        if len(parts) != 2 or not all(part.isdecimal() and int(part) >= 1 for part in parts):
            raise bad(
                "steps", found, "two whole numbers from 1: steps before the save and after it"
            )
        return int(parts[0]), int(parts[1])

    def meshes(self) -> tuple[MeshSpec, ...]:
        try:
            return parse_meshes(self.texts("mesh"))
        except ValueError as error:
            raise pytest.UsageError(f"--cplife-mesh: {error}") from None

    def golden(self) -> Path | None:
        folder = self.path("golden")
        if folder is None:
            return None
        found = folder.is_dir() and self._check_archives("golden", folder)
        if not found and folder != self.path("record-golden"):
            raise bad(
                "golden",
                str(self.text("golden")),
                "a folder with golden archives; --cplife-record-golden=DIR makes one",
            )
        return folder if found else None

    def record_golden(self) -> Path | None:
        folder = self.path("record-golden")
        if folder is not None and folder.is_dir():
            self._check_archives("record-golden", folder)
        elif folder is not None and folder.exists():
            raise bad("record-golden", str(self.text("record-golden")), "a folder; this is a file")
        return folder

    def _check_archives(self, name: str, folder: Path) -> bool:
        """Whether there are any, all of which can be used."""
        # Only here, because most runs of pytest have no use for it.
        from pytest_cplife.evidence.golden import BadArchive, archives_in

        try:
            return bool(archives_in(folder))
        except BadArchive as problem:
            raise pytest.UsageError(f"--cplife-{name}={self.text(name)}: {problem}") from None

    def reports(self) -> tuple[Path, ...]:
        values, base = self._raw("report")
        paths = tuple(base / str(value) for value in values or ())
        for path in paths:
            if path.suffix not in REPORT_SUFFIXES:
                raise bad(
                    "report", path.name, f"a path that ends in {' or '.join(REPORT_SUFFIXES)}"
                )
            if path.is_dir():
                raise bad("report", path.name, "a file; this is a folder")
        return paths


def bad(name: str, found: str, accepted: str) -> pytest.UsageError:
    """The error about the value `found` of an option."""
    return pytest.UsageError(f"--cplife-{name}={found}: accepted is {accepted}")
