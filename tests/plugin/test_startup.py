"""What the plugin costs those who only have it installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.conftest import Run

_HEAVY = ("torch", "numpy", "hypothesis", "xdist", "pytest_cplife.rules", "pytest_cplife.session")


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import pytest_cplife.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "pytest_cplife.options" in output
    assert not [name for name in output if name.startswith(_HEAVY)]
    ours = [name for name in output if name.startswith("pytest_cplife")]
    assert set(ours) == {
        "pytest_cplife",
        "pytest_cplife.ending",
        "pytest_cplife.launchers",
        "pytest_cplife.launchers.base",
        "pytest_cplife.mesh",
        "pytest_cplife.options",
        "pytest_cplife.options.reading",
        "pytest_cplife.options.resolving",
        "pytest_cplife.options.table",
        "pytest_cplife.options.values",
        "pytest_cplife.plugin",
        "pytest_cplife.serving",
        "pytest_cplife.settings",
    }


def test_without_an_adapter_the_plugin_is_dormant(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_there(request):
            assert not [n for n in ("torch", "numpy") if n in sys.modules]
            assert "pytest_cplife.collection" not in sys.modules
            assert not [n for n in request.fixturenames if "cplife" in n]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("cplife *")
    result.stdout.no_fnmatch_line("*= cplife*")


def test_an_adapter_in_the_ini_file_leaves_plain_pytest_alone(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\ncplife_adapter = mymod:Adapter\n")
    pytester.makepyfile(
        """
        import sys

        def test_own():
            assert "mymod" not in sys.modules and "torch" not in sys.modules
        """
    )
    result = run("-v", adapter=None)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("cplife *")
    result.stdout.no_fnmatch_line("*= cplife*")


@pytest.mark.parametrize("flag", ["-Werror", "--strict-markers", "--strict-config"])
def test_the_suite_runs_under_strictness(run: Run, flag: str) -> None:
    result = run(flag, "-k", "GRAD-01")
    result.assert_outcomes(passed=3, deselected=16)


def test_the_working_folder_is_removed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "closed"
    monkeypatch.setenv("FAKE_CLOSED", str(note))
    run("-k", "GRAD-01").assert_outcomes(passed=3, deselected=16)
    workdir = Path(note.read_text())
    assert workdir.name.startswith("cplife-")
    assert not workdir.exists()
