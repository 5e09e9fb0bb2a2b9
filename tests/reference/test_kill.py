"""A small share of the kill test; the script makes 200 and more."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_test.py"


@pytest.mark.parametrize("method", ["plain", "sharded"])
def test_kills_leave_the_old_checkpoint_or_the_new_one(method: str) -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "8", "--method", method, "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (old|new|lost|mixture)", done.stdout)}
    assert counts["old"] + counts["new"] == 8, done.stdout
