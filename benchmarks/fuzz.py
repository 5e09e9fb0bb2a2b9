"""Examples per second of every fuzz suite, each on live worlds of its own.

python benchmarks/fuzz.py [--adapter MOD:ATTR] [--seconds 10]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cplife.fuzz.moves import OPERATIONS, MoveSuite
from pytest_cplife.fuzz.plan_suites import LifecycleSuite, MeshPairSuite
from pytest_cplife.fuzz.profiles import Profile
from pytest_cplife.fuzz.search import Suite, search
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensor_suites import RoundTripSuite
from pytest_cplife.launchers import make_launcher
from pytest_cplife.loading import load_adapter
from pytest_cplife.mesh import MeshSpec, parse_meshes

DTYPES = ("float32", "bfloat16", "float64", "int64", "bool", "complex64")

Make = Callable[[FuzzStage], Suite[Any]]


def cases(declared: tuple[MeshSpec, ...]) -> Iterator[tuple[str, tuple[MeshSpec, ...], Make]]:
    """Name, meshes and suite of each line of the table."""
    for mesh in ("dp=2", "dp=2,tp=2"):
        spec = MeshSpec.parse(mesh)
        yield (
            f"round trip, {spec.world_size} ranks",
            (spec,),
            lambda s: RoundTripSuite(s, DTYPES),
        )
    yield "mesh pair", declared, MeshPairSuite
    yield "lifecycle", declared, LifecycleSuite
    four = (MeshSpec.parse("dp=2,tp=2"),)
    for operation in OPERATIONS:
        made = partial(MoveSuite, operation=operation, dtypes=DTYPES, strided=False)
        yield f"torch's {operation}, 4 ranks", four, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--adapter", default="pytest_cplife.reference_impl:Adapter")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    launcher = make_launcher("processes", device="cpu", timeout=120)
    declared = parse_meshes(load_adapter(options.adapter).meshes)
    with tempfile.TemporaryDirectory(prefix="cplife-") as folder:
        for number, (name, meshes, make) in enumerate(cases(declared)):
            stage = FuzzStage(options.adapter, launcher, Path(folder, str(number)), meshes)
            suite = make(stage)
            # Worlds, models of plans and caches are there before the clock starts.
            search(suite, Profile("warm", 5 * suite.cost, 1, derandomize=True))
            timed = Profile("timed", 50 * suite.cost, 1, derandomize=False, seconds=options.seconds)
            outcome = search(suite, timed)
            rate = outcome.examples / outcome.seconds
            found = "" if outcome.found is None else "  (ended by a failure)"
            print(f"{name:32} {rate:7.1f} examples/s{found}", flush=True)
    launcher.close()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} at the end")


if __name__ == "__main__":
    main()
