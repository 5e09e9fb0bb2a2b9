"""How soon each fault of a rank is told, and in which words, under both launchers of one machine.

    python -m benchmarks.verdicts --rounds 3

The bodies are those that the tests of the launchers run. Where nothing but the deadline can tell, a
short one is given; everywhere else it is a minute, and plays no part.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.launchers import show
from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import World, WorldFailure
from tests.launchers import bodies, faulty

FAR, NEAR = 60.0, 3.0
BOTH = ("processes", "threads")
ALONE = ("processes",)
_SHOWN = 150


@dataclass(frozen=True)
class Fault:
    """One row: what goes wrong, and where it can without taking pytest with it."""

    name: str
    body: Callable[..., Any]
    args: tuple[Any, ...] = ()
    size: int = 3
    deadline: float = FAR
    launchers: tuple[str, ...] = BOTH


FAULTS = (
    Fault("raises", faulty.raises),
    Fault("`sys.exit(3)`", faulty.exits, (3,)),
    Fault("`sys.exit(0)`", faulty.exits, (0,)),
    Fault("`os._exit(0)`", faulty.leaves, launchers=ALONE),
    Fault("SIGKILL inside a collective", faulty.killed, launchers=ALONE),
    Fault("segmentation fault inside a collective", faulty.segfaults, launchers=ALONE),
    Fault("returns without entering a collective", faulty.returns_early),
    Fault("another collective than its peers", faulty.another_collective),
    Fault("another shape", faulty.another_shape),
    Fault("another shape, two ranks", faulty.another_shape, size=2),
    Fault("another dtype", faulty.another_dtype),
    Fault("another dtype, two ranks", faulty.another_dtype, size=2),
    Fault("another dtype of the same size", faulty.same_bytes_other_dtype),
    Fault("two groups in opposite order", faulty.opposite_order),
    Fault("does not make a group that rank 0 makes", faulty.group_without_me),
    Fault("never sends what rank 0 receives", faulty.never_sends),
    Fault("leaves a collective outstanding", faulty.outstanding, launchers=ALONE),
    Fault("sleeps outside a collective", faulty.sleeps, deadline=NEAR, launchers=ALONE),
    Fault(
        "holds the interpreter",
        faulty.spins_without_letting_go,
        deadline=NEAR,
        launchers=ALONE,
    ),
)


def verdict(world: World, fault: Fault) -> tuple[float, str]:
    """Seconds of one faulty call on a world in use, and the head of what is said."""
    world.run(bodies.total, 0.0)
    began = time.perf_counter()
    try:
        world.run(fault.body, *fault.args, timeout=fault.deadline)
    except WorldFailure as failure:
        return time.perf_counter() - began, failure.primary.headline()
    raise RuntimeError(f"{fault.name} has not been noticed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
    print("| fault of rank 1 | launcher | time to verdict | message |\n|---|---|---|---|")
    launchers = {name: make_launcher(name, timeout=FAR) for name in BOTH}
    for name in BOTH:
        for fault in FAULTS:
            if name in fault.launchers:
                world = launchers[name].world(fault.size)
                told = [verdict(world, fault) for _ in range(rounds)]
                seconds = statistics.median(each for each, _ in told)
                words = " ".join(told[0][1].split())
                if len(words) > _SHOWN:
                    words = f"{words[:_SHOWN]}..."
                limit = " (deadline 3 s)" if fault.deadline == NEAR else ""
                print(f"| {fault.name} | {name} | {show(seconds)}{limit} | `{words}` |", flush=True)
    for launcher in launchers.values():
        launcher.close()


if __name__ == "__main__":
    main()
