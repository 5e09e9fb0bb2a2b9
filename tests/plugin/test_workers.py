"""Under xdist: the same outcomes and reports as without, and nothing shared between workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

RULES = "ADAPTER-01 or PLACE-01 or SAVE-01"
MESHES = ("dp=1", "cp=2")


def judge(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Some rules on the reference trainer: the output and the JSON report."""
    report = folder / f"report{len(list(folder.iterdir()))}.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"),
            *("-p", "no:hypothesispytest", "-k", RULES, f"--cplife-report={report}"),
            "--cplife-adapter=pytest_cplife.reference_impl:Adapter",
            *(f"--cplife-mesh={mesh}" for mesh in MESHES),
            *arguments,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, without_seconds(json.loads(report.read_text()))


def without_seconds(document: Any) -> Any:
    if isinstance(document, dict):
        return {k: without_seconds(v) for k, v in document.items() if k != "seconds"}
    return [without_seconds(v) for v in document] if isinstance(document, list) else document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judged")


@pytest.fixture(scope="module", params=["processes", "threads"])
def launcher(request: pytest.FixtureRequest) -> str:
    return f"--cplife-launcher={request.param}"


@pytest.fixture(scope="module")
def alone(folder: Path, launcher: str) -> dict[str, Any]:
    report = judge(folder, launcher)[1]
    assert report["denominator"]["passed"] == 1 + 2 * len(MESHES)
    return report


@pytest.mark.parametrize("workers", [2, 4])
def test_the_report_is_that_of_a_run_without_workers(
    folder: Path, alone: dict[str, Any], launcher: str, workers: int
) -> None:
    output, report = judge(folder, launcher, f"-n{workers}")
    assert report == alone
    # Evidence is gathered once per mesh, because one worker has all of its rules.
    place = defaultdict(set)
    for worker, mesh in re.findall(r"^\[(gw\d)\].* PASSED conformance/.*\[(.*)\]", output, re.M):
        place[mesh].add(worker)
    assert {mesh: len(found) for mesh, found in place.items()} == {"dp1": 1, "cp2": 1}


def test_workers_share_neither_ports_nor_folders(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import json, os
        from pathlib import Path

        import pytest

        def mine(rank):
            files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
            folders = {Path(file).parent.name for file in files}
            return os.environ["MASTER_PORT"], [n for n in folders if n.startswith("cplife-")]

        @pytest.mark.parametrize("n", range(2))
        def test_places(cplife_world, n, worker_id):
            found = cplife_world(2).run(mine)
            assert found[0][0] == found[1][0]
            Path(f"{worker_id}.json").write_text(json.dumps(found))
        """
    )
    result = pytester.runpytest_subprocess("-n2", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=2)
    first, second = (
        json.loads((pytester.path / f"gw{worker}.json").read_text()) for worker in range(2)
    )
    assert {port for port, _ in first}.isdisjoint(port for port, _ in second)
    folders = [{name for _, names in found for name in names} for found in (first, second)]
    assert all(folders) and folders[0].isdisjoint(folders[1])


def test_gpus_are_divided_among_workers(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    pytester.makepyfile(
        """
        import os
        import pytest

        @pytest.mark.parametrize("n", range(2))
        def test_share(worker_id, n):
            shares = {"gw0": "4", "gw1": "5,6"}
            assert os.environ["CUDA_VISIBLE_DEVICES"] == shares[worker_id]
        """
    )
    result = pytester.runpytest_subprocess(
        "-n2", "--cplife-device=cuda", "-p", "no:hypothesispytest"
    )
    result.assert_outcomes(passed=2)


def test_a_conftest_that_asks_for_gpus_leaves_them_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    pytester.makeconftest("import os\nSEEN = os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK')")
    pytester.makepyfile("from conftest import SEEN\ndef test_seen(pytestconfig):\n    assert SEEN")
    quiet = ("-p", "no:hypothesispytest")
    pytester.runpytest_subprocess("--cplife-device=cuda", *quiet).assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*quiet).assert_outcomes(failed=1)
    pytester.makeini("[pytest]\ncplife_device = cuda")
    pytester.runpytest_subprocess(*quiet).assert_outcomes(passed=1)
