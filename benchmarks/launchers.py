"""What a test on ranks costs: our launchers beside the harnesses of torch's own tests.

    python -m benchmarks.launchers --rounds 3

All harnesses run the same workload in turns, so that a machine that becomes slower does so for each
of them. The first test of a harness starts what lives on; later ones are what most tests cost.
"""

# Nothing heavy at the top: a spawned process imports this module again.
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

# Most of a cold start is torch importing what its first DTensor needs, here either by the launcher,
# which leaves the garbage collector out, or by a test module before it.
_COLD = """
import sys, time
import torch
began, used = time.perf_counter(), time.process_time()
if sys.argv[1] == "module":
    import torch.distributed.tensor
from pytest_cplife.launchers import make_launcher
launcher = make_launcher("processes", timeout=600)
imported = time.perf_counter()
from benchmarks.workload import on_rank
launcher.world(4).run(on_rank)
print(time.perf_counter() - began, time.perf_counter() - imported, time.process_time() - used)
launcher.close()
"""
_CLOCKS = ("first result after `import torch`", "after DTensor's import", "CPU time of pytest")
_IMPORTERS = {"launcher": "the launcher imports DTensor", "module": "a test module has imported it"}


def compare(rounds: int) -> None:
    """Print one row per harness: the first test, later tests, and ratios of later tests."""
    from benchmarks.harnesses import harnesses

    contenders = list(harnesses())
    times: dict[str, list[float]] = {}
    try:
        for _ in range(rounds + 1):
            for harness in contenders:
                times.setdefault(harness.name, []).extend(harness.round())
    finally:
        for harness in contenders:
            harness.close()
    print_table(times)


def print_table(times: dict[str, list[float]]) -> None:
    later = {name: values[1:] for name, values in times.items()}
    spawn = next(name for name in times if "spawn" in name)
    base = min(later[spawn]), statistics.median(later[spawn])
    print("| harness | first test | later tests, min | median | times faster than spawn |")
    print("|---|---|---|---|---|")
    for name, values in later.items():
        low, middle = min(values), statistics.median(values)
        ratio = f"{base[0] / low:.0f} (min), {base[1] / middle:.0f} (median)"
        cells = (show(times[name][0]), show(low), show(middle), ratio)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def show(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def cold_start(rounds: int) -> None:
    """From a process that has only imported torch to the first result of a DTensor test."""
    times: dict[str, list[list[float]]] = {importer: [] for importer in _IMPORTERS}
    for _ in range(rounds):
        for importer, rows in times.items():
            command = [sys.executable, "-c", _COLD, importer]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            rows.append([float(word) for word in said.split()])
    for importer, rows in times.items():
        print(f"cold start, 4 ranks, {_IMPORTERS[importer]}:")
        for clock, values in zip(_CLOCKS, zip(*rows, strict=True), strict=True):
            print(f"  {clock}: min {show(min(values))}, median {show(statistics.median(values))}")


def memory_and_width() -> None:
    """The memory of 8 ranks, and that 32 start and run."""
    from benchmarks.workload import proportional_set_size, wide
    from pytest_cplife.launchers import make_launcher

    launcher = make_launcher("processes", timeout=600)
    world: Any = launcher.world(8)
    total = sum(world.run(proportional_set_size))
    print(f"8 ranks: {total / 1024:.0f} MiB PSS")
    world.close()
    began = time.perf_counter()
    world = launcher.world(32)
    world.run(wide)
    first = time.perf_counter()
    world.run(wide)
    print(f"32 ranks: started and ran in {show(first - began)}, again in ", end="")
    print(show(time.perf_counter() - first))
    launcher.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the first (3)")
    rounds = parser.parse_args().rounds
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
    memory_and_width()
    cold_start(rounds)
    compare(rounds)


if __name__ == "__main__":
    main()
