"""What one rank is doing at one moment, seen from a thread beside the one that does it."""

from __future__ import annotations

import linecache
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.recorder import Op, Recorder

Standing = Literal["running", "parked", "collective", "rendezvous"]

_TORCH = str(Path(torch.__file__).parent) + "/"
_C10D = _TORCH + "distributed/distributed_c10d.py"
# What blocks in there without an entry in the recorder. Nothing else does: a rank may as well be
# pickling a large object in one of its functions.
_RENDEZVOUS = frozenset(
    {"recv", "send", "_new_process_group_helper", "_store_based_barrier", "monitored_barrier"}
)
_POLLING = frozenset({"_new_process_group_helper", "_store_based_barrier"})
# Whoever calls the user's function, innermost last.
_CALLERS = ("pytest_cplife/launchers/service.py", "pytest_cplife/spmd/rank.py")
# A thread that waits inside these waits for another thread of the same process.
_PARKS = ("threading.py", "queue.py", "concurrent/futures/thread.py", "concurrent/futures/_base.py")
_WAIT = re.compile(r"\.wait\(|wait_tensor\(|\.synchronize\(")
# gloo's own loop wakes every few milliseconds whether there is work or not.
_RESTLESS = frozenset({"gloo_tcp_loop"})


@dataclass(frozen=True, slots=True)
class Glance:
    """What tells whether a rank has moved. It costs the same however much the rank has done.

    Attributes:
        fingerprint: equal in two glances only if nothing has moved between them.
        wakes: how often each thread has woken that does so whether there is work or not.
    """

    fingerprint: tuple[Any, ...]
    wakes: Mapping[str, int]

    def has_looked_since(self, earlier: Glance) -> bool:
        """Whether its threads that look for work have looked since, and more than once: what had
        reached the process by then has been taken up. On a busy machine that can take long."""
        return set(self.wakes) == set(earlier.wakes) and all(
            count >= earlier.wakes[thread] + 2 for thread, count in self.wakes.items()
        )


@dataclass(frozen=True, slots=True)
class Sample(Glance):
    """One look at a rank: a glance, and all that it is doing.

    Attributes:
        standing: what its threads are at, taken together.
        function: the innermost Python function.
        place: where in the code, for messages.
        stack: the Python stacks of its threads, the called function's first.
        ops: the collectives it has entered, oldest first, as far back as the recorder reaches.
        groups: global ranks by group name.
    """

    standing: Standing
    function: str
    place: str
    stack: str
    ops: tuple[Op, ...]
    groups: Mapping[str, list[int]]

    @property
    def pending(self) -> tuple[Op, ...]:
        return tuple(op for op in self.ops if op.pending)


def take_glance(recorder: Recorder) -> Glance:
    """Glance at this process, a rank; called in the watcher's thread."""
    return _glance_at(_other_frames(), recorder)


def take_sample(recorder: Recorder) -> Sample:
    """Look at this process, a rank; called in the watcher's thread."""
    frames = _other_frames()
    main = threading.main_thread()
    ops = recorder.ops()
    pending = any(op.pending for op in ops)
    names = {t.ident: t for t in threading.enumerate()}
    standings = {t: _standing(f, pending) for t, f in frames.items()}
    # The one that tells most: a trainer may well run in a thread while the main one is parked.
    order: list[Standing] = ["running", "rendezvous", "collective", "parked"]
    shown = min(frames, key=lambda t: (order.index(standings[t]), t != main.ident))
    glance = _glance_at(frames, recorder)
    stacks = []
    for ident in sorted(frames, key=lambda t: t != shown):
        name = names[ident].name if ident in names else "unnamed"
        stacks.append(f"thread {name}:\n" + _stack_text(frames[ident]))
    return Sample(
        fingerprint=glance.fingerprint,
        wakes=glance.wakes,
        standing=standings[shown],
        function=frames[shown].f_code.co_name,
        place=_place(frames[shown]),
        stack="\n".join(stacks),
        ops=ops,
        groups=torch_private.group_ranks(),
    )


# What the parent may ask for, by the name of what it gets.
TAKEN: Mapping[str, Callable[[Recorder], Glance]] = {
    Glance.__name__: take_glance,
    Sample.__name__: take_sample,
}


def _other_frames() -> dict[int, FrameType]:
    me = threading.get_ident()
    return {thread: frame for thread, frame in sys._current_frames().items() if thread != me}


def _glance_at(frames: Mapping[int, FrameType], recorder: Recorder) -> Glance:
    counters, wakes = _counters(skip=threading.get_native_id())
    main = threading.main_thread()
    names = {t.ident: t for t in threading.enumerate()}
    for ident, frame in frames.items():
        if frame.f_code.co_name in _POLLING:  # it wakes to look into the store
            # After a fork the main thread's object still has the parent's number.
            native = os.getpid() if ident == main.ident else names[ident].native_id
            counters.pop(str(native), None)
    return Glance(
        fingerprint=(
            tuple(sorted((t, id(f), f.f_lasti) for t, f in frames.items())),
            tuple(sorted(counters.items())),
            recorder.counts(),
        ),
        wakes=wakes,
    )


def _stack_text(frame: FrameType) -> str:
    """The stack from the called function on, without what the launcher did to call it."""
    lines = traceback.extract_stack(frame)
    ours = [i for i, line in enumerate(lines) if line.filename.endswith(_CALLERS)]
    return "".join(traceback.format_list(lines[ours[-1] + 1 if ours else 0 :])[-25:])


def _standing(frame: FrameType, pending: bool) -> Standing:
    file = frame.f_code.co_filename
    if file.endswith(_PARKS):
        return "parked"
    waits = bool(_WAIT.search(linecache.getline(file, frame.f_lineno)))
    if pending and (file.startswith(_TORCH) or waits):
        return "collective"
    if file == _C10D and frame.f_code.co_name in _RENDEZVOUS:
        return "rendezvous"
    return "running"


def _place(frame: FrameType) -> str:
    """The innermost line that is not torch's, and what it called there."""
    inner, outer = frame, frame
    while outer.f_back is not None and outer.f_code.co_filename.startswith(_TORCH):
        outer = outer.f_back
    where = f"{Path(outer.f_code.co_filename).name}:{outer.f_lineno} in {outer.f_code.co_name}"
    line = linecache.getline(outer.f_code.co_filename, outer.f_lineno).strip()
    called = "" if inner is outer else f", inside {inner.f_code.co_name}"
    return f"{where}: {line}{called}"


def _counters(skip: int) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """Context switches by thread: a sleeping thread for which they stand still has not run.

    Those that wake without work are apart. Empty where the system does not tell; the Python frames
    then have to do.
    """
    counters: dict[str, tuple[str, ...]] = {}
    wakes: dict[str, int] = {}
    try:
        for task in Path("/proc/self/task").iterdir():
            fields = dict(
                line.split(":", 1) for line in (task / "status").read_text().splitlines() if line
            )
            switches = fields["voluntary_ctxt_switches"].strip()
            if fields["Name"].strip() in _RESTLESS:
                wakes[task.name] = int(switches)
            elif task.name != str(skip):
                sleeps = fields["State"].strip().startswith("S")
                # One that runs has moved, even if it was never switched out.
                counters[task.name] = (switches, "" if sleeps else str(time.monotonic_ns()))
    except (OSError, KeyError, ValueError):
        return {}, {}
    return counters, wakes
