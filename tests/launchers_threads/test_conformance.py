"""The suite judges a trainer alike under both launchers, on evidence that is equal bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.evidence.journal import read_journal
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.registry import all_rules
from pytest_cplife.scenarios.table import RUNS
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings

# Addresses, which no two processes share; and failures, whose words name the launcher's means.
_OWN = ("alias", "identity", "detail", "headline")


def verdicts(adapter: str, launcher: str, mesh: str, workdir: Path) -> dict[str, str]:
    spec = MeshSpec.parse(mesh)
    settings = Settings(adapter=adapter, workdir=workdir, meshes=(spec,), launcher=launcher)
    with Session(settings) as session:
        # Rules that bring an engine of their own have no journals to compare.
        rules = [rule for rule in all_rules() if set(rule.runs) <= set(RUNS)]
        return {rule.id: session.judge(rule, spec).outcome.value for rule in rules}


def plain(value: Any) -> Any:
    """Evidence as nested dicts and lists, without what belongs to one process."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.name not in _OWN]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, int | float | str | None) else repr(value)


def evidence(workdir: Path) -> dict[str, Any]:
    """What every rank of every run saw, by journal."""
    found = {}
    for path in sorted(workdir.rglob("*.journal")):
        journal = read_journal(path)
        name = str(path.relative_to(workdir))
        found[name] = plain((journal.snapshots, journal.steps, journal.losses, journal.files))
    return found


def contents(workdir: Path) -> set[str]:
    """Digests of all tensors that any rank ever showed."""
    root = workdir / "tensors"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("adapter", "mesh"),
    [("tests.trainers.fsdp2:Adapter", "fsdp=2"), ("pytest_cplife.reference_impl:Adapter", "cp=2")],
)
def test_the_same_verdicts_on_the_same_bytes(adapter: str, mesh: str, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("processes", "threads")}
    found = {name: verdicts(adapter, name, mesh, folder) for name, folder in folders.items()}
    assert found["threads"] == found["processes"]
    assert "passed" in found["threads"].values()
    ours, theirs = evidence(folders["threads"]), evidence(folders["processes"])
    assert set(ours) == set(theirs) and len(theirs) > 10
    for name, reference in theirs.items():
        assert ours[name] == reference, name
    assert contents(folders["threads"]) == contents(folders["processes"])
