"""``python -m pytest_cplife.fuzz FILE``: try what a replay file says again."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from pytest_cplife.fuzz.replay import SUITES, explain, read_replay, run_replay
from pytest_cplife.fuzz.search import Found
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.launchers import LAUNCHERS, make_launcher


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 where the example still fails, 0 where not, 2 where it cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m pytest_cplife.fuzz", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--adapter", help="another adapter than the one that failed")
    parser.add_argument("--launcher", default="processes", choices=LAUNCHERS)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    try:
        replay = read_replay(options.file)
    except (OSError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 2
    launcher = make_launcher(options.launcher, device=options.device)
    with tempfile.TemporaryDirectory(prefix="cplife-") as folder:
        stage = FuzzStage(options.adapter or replay.adapter, launcher, Path(folder), ())
        try:
            violations = run_replay(replay, stage)
        finally:
            launcher.close()
        if not violations:
            print("nothing is wrong with this example")
            return 0
        suite = SUITES[replay.suite](stage)
        print(explain(suite, Found(suite.from_json(replay.example), violations), None))
        return 1


if __name__ == "__main__":
    sys.exit(main())
