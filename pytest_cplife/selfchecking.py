"""``--cplife-selftest``: the planted faults and the healthy trainers as pytest items."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = "selftest"
PACKAGE = f"pytest_cplife.{FOLDER}"

_TALLIES = {
    "test_fault_is_found": ("planted faults", "found by the rule that has to find it", "missed"),
    "test_healthy_trainer_on_two_ranks": (
        "healthy trainers, each on two ranks",
        "without a false alarm",
        "with one",
    ),
    "test_healthy_trainer_trips_no_rule": (
        "healthy trainers, each on all of its meshes",
        "without a false alarm",
        "with one",
    ),
}
"""By test: what it is about, and what its passing and its failing mean."""


def start_selftest(config: pytest.Config) -> None:
    """Have pytest collect the kill matrix, unless the user names parts of it."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(kill_matrix())]
        # The header would go on to name the user's testpaths otherwise.
        config.args_source = pytest.Config.ArgsSource.ARGS
    else:
        config.args = [_installed(config, argument) for argument in config.args]
    config.pluginmanager.register(SelftestHooks(), "cplife-selftest")


def kill_matrix() -> Path:
    """The module with the tests."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise pytest.UsageError(f"{PACKAGE} is not installed")
    return Path(spec.origin).with_name("test_kill_matrix.py")


def _installed(config: pytest.Config, argument: str) -> str:
    """A pasted id names no file of the user's; it means the installed module."""
    path, colons, names = argument.partition("::")
    module = kill_matrix()
    if path != f"{FOLDER}/{module.name}" or (config.invocation_params.dir / path).exists():
        return argument
    return f"{module}{colons}{names}"


def selftest_module(path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """The collector of the kill matrix, None for any other module."""
    if path.resolve() != kill_matrix().resolve():
        return None
    module: SelftestModule = SelftestModule.from_parent(
        parent, path=path, nodeid=f"{FOLDER}/{path.name}"
    )
    return module


class SelftestModule(pytest.Module):
    """The kill matrix under one id wherever it is installed."""

    def _getobj(self) -> Any:
        # By its installed name: imported from its file it would be a top-level `selftest`.
        return importlib.import_module(f"{PACKAGE}.{self.path.stem}")


class SelftestHooks:
    """Counts what came out and says it at the end."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _TALLIES}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2].partition("[")[0]
        # A failed set-up is a test that told nothing.
        if name in self._counts and (report.when == "call" or report.failed):
            self._counts[name]["passed" if report.passed else "failed"] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("cplife: selftest")
        for name, (what, good, bad) in _TALLIES.items():
            passed, failed = (self._counts[name][key] for key in ("passed", "failed"))
            if passed or failed:
                terminalreporter.write_line(
                    f"{passed + failed} {what}: {passed} {good}, {failed} {bad}"
                )
