"""The file of expected failures: which rules are known to fail, where, and why.

    [[expected]]
    rule = "GO-02"
    mesh = "dp=2,cp=2"      # left out: on every mesh
    reason = "the scheduler is rebuilt, see #12"

An entry that says more than is true would hide the next real failure, so nothing in the
file is taken lightly: a rule that does not exist, a reason left out and a key that is
unknown end the run at its start; a rule that passes fails its test; an entry that applies
to nothing fails the run.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.mesh import MeshSpec

_KEYS = {"rule", "mesh", "reason"}
_SAMPLE = (
    'accepted are tables [[expected]] with rule = "GO-02", reason = "..." and, if need be, mesh'
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One entry; `mesh` is empty where it is meant for every mesh."""

    rule: str
    mesh: str
    reason: str

    def covers(self, rule: str, mesh: str) -> bool:
        return self.rule == rule and self.mesh in ("", mesh)

    def __str__(self) -> str:
        return f"{self.rule} on {self.mesh or 'every mesh'}"


class Expectations:
    """The entries of one file, or none."""

    def __init__(self, entries: Iterable[Expectation] = ()) -> None:
        self.entries = tuple(entries)

    def of(self, rule: str, mesh: str) -> Expectation | None:
        return next((entry for entry in self.entries if entry.covers(rule, mesh)), None)

    def check_rules(self, known: Collection[str], source: str) -> None:
        """Raise for entries about rules that do not exist."""
        unknown = sorted({entry.rule for entry in self.entries} - set(known))
        if unknown:
            raise pytest.UsageError(
                f"{source}: no such rule: {', '.join(unknown)}; "
                "`pytest --cplife-rules` lists those that exist"
            )


def read_expected(path: Path) -> Expectations:
    """The expected failures in the file `path`.

    Raises:
        pytest.UsageError: there is no such file, or it says something that is not accepted.
    """
    try:
        data = _toml().loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise pytest.UsageError(
            f"--cplife-expected: cannot read {path}: {error.strerror}"
        ) from None
    except ValueError as error:
        raise pytest.UsageError(f"{path.name} is not TOML: {error}") from None
    entries = data.get("expected", [])
    if set(data) - {"expected"} or not _is_tables(entries):
        found = ", ".join(sorted(set(data) - {"expected"})) or "expected"
        raise pytest.UsageError(f"{path.name}: cannot use {found!r}; {_SAMPLE}")
    read = [_entry(item, f"{path.name}, entry {n}") for n, item in enumerate(entries, 1)]
    for n, entry in enumerate(read):
        for other in read[:n]:
            if other.covers(entry.rule, entry.mesh) or entry.covers(other.rule, other.mesh):
                raise pytest.UsageError(f"{path.name}: {entry} and {other} overlap; keep one")
    return Expectations(read)


def _is_tables(entries: object) -> bool:
    return isinstance(entries, list) and all(isinstance(item, dict) for item in entries)


def _entry(item: dict[str, Any], where: str) -> Expectation:
    unknown = sorted(set(item) - _KEYS)
    if unknown:
        raise pytest.UsageError(f"{where}: unknown key {', '.join(unknown)}; {_SAMPLE}")
    for key, value in item.items():
        if not isinstance(value, str):
            raise pytest.UsageError(f"{where}: {key} is {value!r}; accepted is a string")
    if not item.get("rule"):
        raise pytest.UsageError(f"{where}: no rule; {_SAMPLE}")
    if not item.get("reason", "").strip():
        raise pytest.UsageError(
            f"{where}: {item['rule']} has no reason; say why it is expected to fail"
        )
    try:
        mesh = str(MeshSpec.parse(item["mesh"])) if "mesh" in item else ""
    except ValueError as error:
        raise pytest.UsageError(f"{where}: {error}") from None
    return Expectation(rule=item["rule"], mesh=mesh, reason=item["reason"].strip())


def _toml() -> Any:
    """The standard library's reader, which Python 3.10 does not have yet."""
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise pytest.UsageError("--cplife-expected needs Python 3.11, or the package tomli")
