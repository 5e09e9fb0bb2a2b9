"""What gets installed, and that the suite is the same from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("pytest_cplife", "conformance", "reference_impl", "selftest")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
    subprocess.run(
        [*pip, "--quiet", "--no-build-isolation", "--no-deps", "-w", str(source / "out"), "."],
        cwd=source,
        check=True,
        timeout=120,
    )
    (built,) = (source / "out").glob("*.whl")
    return built


def test_the_wheel_holds_everything_under_one_name(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert len(tops) == 2
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytest_cplife"}
    wanted = {"pytest_cplife/py.typed", "pytest_cplife/templates/adapter.py.txt"}
    for folder in FOLDERS:
        inside = "pytest_cplife" if folder == "pytest_cplife" else f"pytest_cplife/{folder}"
        for path in (ROOT / folder).rglob("*.py"):
            wanted.add(f"{inside}/{path.relative_to(ROOT / folder).as_posix()}")
    # A folder of modules that is missing here is missing in pyproject.toml's `packages`.
    assert wanted <= names
    assert not [name for name in names if "/tests/" in name]


def test_the_installed_suite_has_the_same_ids(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTEST_ADDOPTS": ""}

    def output(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert output("-c", "import pytest_cplife; print(pytest_cplife.__file__)").startswith(str(site))
    ids = output(
        "-m",
        "pytest",
        "--cplife-adapter=pytest_cplife.reference_impl:Adapter",
        "--collect-only",
        "-q",
        "-k",
        "GO-02",
    ).splitlines()
    assert ids[0].startswith("conformance/test_go.py::test_go_02_")
    assert not [line for line in ids if "site" in line.partition("[")[0]]
