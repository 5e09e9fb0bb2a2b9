"""A pytest of its own, in a folder of its own, with fakes for what lies below the plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin.fakes import RULES

ADAPTER = """
from pytest_cplife import LifecycleAdapter

class Adapter(LifecycleAdapter):
    def build_serial_model(self): ...
    def start(self, ctx): ...

class HalfAdapter(LifecycleAdapter):
    def start(self, ctx): ...

class Narrow(Adapter):
    meshes = ("dp=1",)
"""

MESHES = ("dp1", "cp2", "dp2-cp2")
TOTAL = sum(len(MESHES) if rule != "ADAPTER-01" else 1 for rule, *_ in RULES)
BROKEN = "conformance/test_go.py::test_go_02_weights_equal_uninterrupted[dp2-cp2]"

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest with fakes in a folder that holds the module `mymod` with some adapters."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv("FAKE", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(mymod=ADAPTER)

    def run(*arguments: str, adapter: str | None = "mymod:Adapter") -> pytest.RunResult:
        named = [f"--cplife-adapter={adapter}"] if adapter else []
        # Hypothesis' own plugin would triple the time of each of these runs.
        plugins = ("-p", "fakes", "-p", "no:hypothesispytest")
        return pytester.runpytest_subprocess(*plugins, *named, *arguments)

    return run


def ids_of(result: pytest.RunResult) -> list[str]:
    """The ids that ``--collect-only -q`` printed."""
    return [line for line in result.outlines if "::" in line and not line.startswith("ERROR")]
