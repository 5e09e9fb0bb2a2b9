"""Run a selection of tests again and again, to find those that fail now and then.

    python scripts/repeat.py --times 20 --each 10 --lanes 2 -- tests/launchers -k "not sleeps"

Every run is a pytest of its own with what follows ``--``, in which each test runs `each` times.
Lanes run side by side, so that tests meet a busy machine as well. Temporary files go to a folder
per run, and what a launcher has left in it counts as a failure. The tally is kept up to date in
``FOLDER/tally.json``, and the output of each run that did not pass stays in ``FOLDER``. The exit
status is 0 if all runs passed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NOT_PASSED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?|deselected)")


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--each", type=int, default=1)


def pytest_generate_tests(metafunc: Any) -> None:
    """In the pytest that is run, which has this file as a plugin: every test several times."""
    times = metafunc.config.getoption("--each")
    if times > 1:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(times))


@dataclass
class Tally:
    """What has become of the runs so far; lanes take turns in writing it."""

    folder: Path
    times: int
    begun: int = 0
    done: int = 0
    broken: int = 0
    tests: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    loads: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def number(self) -> int | None:
        """The number of the next run; None when there is none."""
        with self.lock:
            if self.begun == self.times:
                return None
            self.begun += 1
            return self.begun

    def take(self, number: int, status: int, text: str, seconds: float) -> None:
        with self.lock:
            self.done += 1
            self.seconds.append(seconds)
            self.loads.append(os.getloadavg()[0])
            last = text.strip().rpartition("\n")[2]
            self.tests.update({kind: int(count) for count, kind in _COUNTS.findall(last)})
            if status != 0:
                self.broken += 1
                # Named twice at most, in the middle and in the summary.
                self.failures.update(sorted(set(_NOT_PASSED.findall(text))) or ["(no test named)"])
                (self.folder / f"run{number}.txt").write_text(text)
            self._write()

    def _write(self) -> None:
        low, high = min(self.loads), max(self.loads)
        document = {
            "runs": self.done,
            "runs that did not pass": self.broken,
            "tests": dict(self.tests),
            "tests that failed": dict(self.failures),
            "load": f"{low:.1f} to {high:.1f}",
            "seconds per run": f"{min(self.seconds):.0f} to {max(self.seconds):.0f}",
        }
        (self.folder / "tally.json").write_text(json.dumps(document, indent=2) + "\n")


def lane(tally: Tally, command: list[str], limit: float) -> None:
    """One run after another until none is left."""
    while (number := tally.number()) is not None:
        began = time.monotonic()
        temporary = tally.folder / f"tmp{number}"
        temporary.mkdir()
        # A session of its own: a run that is cut off takes what it has started with it.
        process = subprocess.Popen(
            [*command, f"--basetemp={temporary / 'pytest'}"],
            env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text = process.communicate()[0] + f"\nFAILED (run) had not ended after {limit:g} s\n"
        status = process.returncode
        for left in temporary.glob("cplife-*"):
            text, status = f"FAILED (left) {left.name}\n{text}", status or 1
        tally.take(number, status, text, time.monotonic() - began)
        shutil.rmtree(temporary, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that one run may take")
    parser.add_argument("--folder", type=Path, default=Path("repeated"))
    parser.add_argument("pytest", nargs="+", help="after --: arguments of pytest")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    tally = Tally(options.folder.resolve(), options.times)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "repeat"]
    command += [f"--each={options.each}", *options.pytest]
    lanes = [
        threading.Thread(target=lane, args=(tally, command, options.limit))
        for _ in range(options.lanes)
    ]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    print((tally.folder / "tally.json").read_text(), end="")
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
