"""SIGTERM to a real pytest process: summary and reports are written, and the ranks are gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ADAPTER = """
import os, time
from pathlib import Path
from pytest_cplife.reference_impl import Adapter as Reference
from pytest_cplife.reference_impl.adapter import Run

class Waiting(Run):
    def save(self, path):
        Path(f"{os.environ['PIDS']}/{os.getpid()}").touch()
        time.sleep(300)

class Adapter(Reference):
    def start(self, ctx):
        run = super().start(ctx)
        run.__class__ = Waiting
        return run
"""


def wait_for(seen: Path, process: subprocess.Popen[str]) -> list[int]:
    """The processes that have come as far as to save."""
    end = time.monotonic() + 120
    while not any(seen.iterdir()):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    return [int(path.name) for path in seen.iterdir()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("launcher", ["processes", "threads"])
def test_sigterm_is_an_interrupt(pytester: pytest.Pytester, launcher: str) -> None:
    pytester.makepyfile(waiting=ADAPTER)
    seen = pytester.mkdir("seen")
    command = [sys.executable, "-m", "pytest", "--cplife-adapter=waiting.py:Adapter"]
    command += ["--cplife-mesh=cp=2", f"--cplife-launcher={launcher}", "-k", "ADAPTER or SAVE-01"]
    process = subprocess.Popen(
        [*command, "--cplife-report=r.json", "-p", "no:cacheprovider"],
        cwd=pytester.path,
        env={**os.environ, "PIDS": str(seen)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        ranks = wait_for(seen, process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "asked to end (SIGTERM)" in output
    assert "accounted for" in output
    report = json.loads((pytester.path / "r.json").read_text())
    assert report["denominator"]["passed"] >= 1
    assert not [pid for pid in ranks if alive(pid)]


def test_it_is_restored(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import signal

        def test_own(): assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        def test_ranks(cplife_world): assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        """
    )
    before = signal.getsignal(signal.SIGTERM)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    assert signal.getsignal(signal.SIGTERM) is before
