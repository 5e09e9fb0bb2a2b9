"""The suite judges a trainer alike under both launchers, on evidence that is equal bit for bit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.evidence.journal import read_journal
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.registry import all_rules, get_rule
from pytest_cplife.scenarios.table import RUNS
from pytest_cplife.session import Session
from pytest_cplife.settings import Settings

# Addresses, which no two processes share; and failures, whose words name the launcher's means.
_OWN = ("alias", "identity", "detail", "headline")


# How a run says that it needs a rank to die alone; there threads have nothing to show.
_TOGETHER = "ranks that share a process"
# Moments named by the digest of a folder: what an interrupted save leaves in it depends on how far
# each rank had come, and so on the launcher.
_LEFT_BY_SAVES = re.compile(r"[0-9a-f]{24}")


def verdicts(adapter: str, launcher: str, mesh: str, workdir: Path) -> dict[str, tuple[str, str]]:
    """Outcome and reason by rule."""
    spec = MeshSpec.parse(mesh)
    settings = Settings(adapter=adapter, workdir=workdir, meshes=(spec,), launcher=launcher)
    with Session(settings) as session:
        # Rules that bring an engine of their own have no journals to compare.
        rules = [rule for rule in all_rules() if set(rule.runs) <= set(RUNS)]
        judged = [session.judge(rule, spec) for rule in rules]
        return {verdict.rule: (verdict.outcome.value, verdict.reason) for verdict in judged}


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
    """What every rank of every run saw, by journal; None where it needed a process of its own."""
    found: dict[str, Any] = {}
    for path in sorted(workdir.rglob("*.journal")):
        journal = read_journal(path)
        alone = any(why.startswith(_TOGETHER) for why in journal.absent.values())
        moments = {
            name: snapshot
            for name, snapshot in journal.snapshots.items()
            if not _LEFT_BY_SAVES.fullmatch(name)
        }
        seen = plain((moments, journal.steps, journal.losses, journal.files))
        found[str(path.relative_to(workdir))] = None if alone else seen
    return found


def contents(workdir: Path) -> set[str]:
    """Digests of all tensors that any rank ever showed."""
    root = workdir / "tensors"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("adapter", "mesh"),
    [
        ("pytest_cplife.selftest.trainers.fsdp2:Adapter", "fsdp=2"),
        ("pytest_cplife.reference_impl:Adapter", "cp=2"),
    ],
)
def test_the_same_verdicts_on_the_same_bytes(adapter: str, mesh: str, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("processes", "threads")}
    found = {name: verdicts(adapter, name, mesh, folder) for name, folder in folders.items()}
    beyond = {
        rule
        for rule, (outcome, reason) in found["threads"].items()
        if outcome == "not covered" and reason.startswith(_TOGETHER)
    }
    outcomes = {
        launcher: {rule: outcome for rule, (outcome, _) in of.items() if rule not in beyond}
        for launcher, of in found.items()
    }
    assert outcomes["threads"] == outcomes["processes"]
    assert "passed" in outcomes["threads"].values()
    ours, theirs = evidence(folders["threads"]), evidence(folders["processes"])
    needed = {run for rule in beyond for run in get_rule(rule).runs}
    assert {Path(name).parent.name for name in set(theirs) - set(ours)} <= needed
    compared = [name for name, seen in ours.items() if seen is not None]
    assert len(compared) > 10
    for name in compared:
        assert ours[name] == theirs[name], name
    assert contents(folders["threads"]) <= contents(folders["processes"])
    if not beyond:
        assert contents(folders["threads"]) == contents(folders["processes"])
