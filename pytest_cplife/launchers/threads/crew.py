"""The live ranks of a world: their threads, their state, and one call after another."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from pytest_cplife.launchers.threads import private
from pytest_cplife.launchers.threads.group import RankGroup
from pytest_cplife.launchers.threads.leftovers import ThreadState, changed
from pytest_cplife.launchers.threads.outcomes import Hung, Outcome, Raised, Returned, stopped
from pytest_cplife.launchers.threads.rank import ThreadRank, device_of
from pytest_cplife.launchers.threads.scene import Running, Scene
from pytest_cplife.launchers.threads.state import ProcessState, State
from pytest_cplife.launchers.threads.stops import Abandoned, RankStopped
from pytest_cplife.launchers.threads.turns import RANK_OF_THREAD, Wait

_GROUP_TIMEOUT = timedelta(days=1)
# How long ranks that are ended at a deadline may take to leave their `with` and `finally` blocks.
_GRACE = 2.0
_SLICE = 0.2
_DEBUGGERS = frozenset({"pdb", "bdb", "cmd", "debugpy", "pydevd", "_pydevd_bundle"})
_start = threading.Thread.start
_marks = itertools.count(1)

Body = Callable[..., Any]


class Crew:
    """One generation of ranks. After a call that failed it is not used again."""

    def __init__(self, size: int, *, device: str, serial: bool, bare: bool) -> None:
        self.size = size
        self.grouped = not (serial or bare)
        self.spent = False
        self.ranks = [ThreadRank(r, size, device_of(r, device), serial) for r in range(size)]
        self._scene = Scene(size, leave=self._leave, enter=self._enter, stuck=self._stuck)
        self._process = ProcessState()
        self._groups: list[Any] = [private.RankWorld() for _ in range(size)]
        self._marks = [next(_marks) for _ in range(size)]
        self._states: list[State] = []
        self._body: Callable[[ThreadRank], Any] | None = None
        self._outcomes: dict[int, Outcome] = {}
        self._thread_notes: dict[int, list[str]] = {}
        self._stale = False
        self._threads = [
            threading.Thread(target=self._serve, args=(r,), name=f"rank {r} of {size}", daemon=True)
            for r in range(size)
        ]
        for rank, thread in enumerate(self._threads):
            setattr(thread, RANK_OF_THREAD, rank)
            thread.start()

    def join(self, timeout: float) -> dict[int, Outcome]:
        """Make the process group, where there is to be one."""
        if not self.grouped:
            return {}
        return self.call(self._init_group, (), timeout)[0]

    def call(
        self, fn: Body, args: tuple[Any, ...], timeout: float
    ) -> tuple[dict[int, Outcome], list[str]]:
        """One round: how each rank ended, in the order of ending, and what they left behind."""
        self._body = lambda rank: fn(rank, *args)
        self._outcomes = {}
        self._scene.board.clear()  # what an earlier call has left there is none of this one's
        host = self._process.read()
        fresh = [
            self._process.fresh(host, groups, rank.variables())
            for rank, groups in zip(self.ranks, self._groups, strict=True)
        ]
        self._states = [dict(state) for state in fresh]
        notes: list[str] = []
        try:
            with (
                Running(self._scene),
                private.cooperative(
                    RankGroup, self._current_store, self._current_mark, self._start_thread
                ),
            ):
                self._play_round(timeout)
                if all(isinstance(outcome, Returned) for outcome in self._outcomes.values()):
                    notes = self._tidy(fresh)
                else:
                    self.spent = True
        finally:
            self._process.write(host)
            self._body = None
            outcomes, self._outcomes = self._outcomes, {}
        return outcomes, notes

    def close(self) -> None:
        """End the threads and let go of the groups."""
        self.spent = True
        self._scene.turns.dismiss()
        for rank, thread in enumerate(self._threads):
            # One that lost its turn ends when its program lets it.
            if rank not in self._scene.turns.lost:
                thread.join(timeout=_GRACE)
        self._scene.circles.clear()

    # In the main thread.

    def _play_round(self, timeout: float) -> None:
        turns = self._scene.turns
        end = time.monotonic() + timeout
        try:
            turns.begin()
            # In slices: an interrupt that comes just before a wait does not end it.
            while not turns.over(min(end - time.monotonic(), _SLICE)):
                if time.monotonic() < end:
                    continue
                if self._debugged():
                    # Whoever reads variables may take the time that it takes.
                    end = time.monotonic() + 1
                    continue
                self._end_slow_rank(timeout)
                end = time.monotonic() + _GRACE
        except BaseException:
            # pytest itself is interrupted.
            self.spent = True
            self._end_slow_rank(timeout)
            turns.over(_GRACE)
            raise

    def _end_slow_rank(self, timeout: float) -> None:
        turns = self._scene.turns
        current = turns.current
        stack = self._stack(current) if current is not None else ""
        slow = turns.revoke(f"rank {current} did not finish within {timeout:g} s")
        if slow is None:
            return
        thread = self._threads[slow]
        _interrupt(thread)
        thread.join(timeout=0.2)
        self._outcomes[slow] = Hung(timeout, stack, unending=thread.is_alive())

    def _frame(self, rank: int) -> FrameType | None:
        return sys._current_frames().get(self._threads[rank].ident or 0)

    def _stack(self, rank: int) -> str:
        return "".join(traceback.format_stack(self._frame(rank)))

    def _debugged(self) -> bool:
        current = self._scene.turns.current
        frame = None if current is None else self._frame(current)
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _DEBUGGERS:
                return True
            frame = frame.f_back
        return False

    def _tidy(self, fresh: list[State]) -> list[str]:
        """After a round that went well: what it left behind goes, and is told."""
        notes = [f"rank {r}: {n}" for r, found in self._thread_notes.items() for n in found]
        self._thread_notes = {}
        for rank, state in enumerate(fresh):
            notes += [f"rank {rank}: {note}" for note in changed(state, self._states[rank])]
        leftovers = self._scene.leftovers()
        notes += leftovers
        self.spent = self.spent or bool(leftovers)
        for rank in range(self.size):
            notes += [f"rank {rank}: {note}" for note in self._tidy_groups(rank)]
        return notes

    def _tidy_groups(self, rank: int) -> list[str]:
        world, meshes = self._groups[rank], self.ranks[rank].meshes
        if not self.grouped:
            return []
        if world.default_pg is None:
            self.spent = True
            return ["the world's process group had been destroyed"]
        kept = private.mesh_groups(list(meshes.values()))
        leaked = [
            n for g, n in world.pg_names.items() if g is not world.default_pg and n not in kept
        ]
        if not leaked:
            return []
        self._process.write(self._states[rank])
        private.destroy_groups(world.default_pg)
        self._states[rank] = self._process.read()
        # Whatever torch has cached by a mesh of this call must not be found by one of the next.
        meshes.clear()
        self._marks[rank] = next(_marks)
        self._stale = True
        return [f"{len(leaked)} process group(s) had been left alive"]

    # In the rank's thread.

    def _serve(self, rank: int) -> None:
        # Backward runs in the thread that calls it, so that its collectives are this rank's.
        torch.autograd.set_multithreading_enabled(False)
        torch.set_num_threads(1)
        state = ThreadState()
        generation = self._marks[rank]
        while self._scene.turns.await_turn(rank):
            if self._stale and generation != self._marks[rank]:
                generation = self._marks[rank]
                private.forget_shardings()
            outcome = self._run(rank)
            notes, spent = state.restore()
            if notes:
                self._thread_notes[rank] = notes
            self.spent = self.spent or spent
            self._outcomes.setdefault(rank, outcome)
            del outcome
            self._scene.turns.finish(rank)

    def _run(self, rank: int) -> Outcome:
        body = self._body
        try:
            assert body is not None
            return Returned(body(self.ranks[rank]))
        except BaseException as error:
            return Raised(error)

    def _init_group(self, rank: ThreadRank) -> None:
        if rank.device.type == "cuda":
            torch.cuda.set_device(rank.device)
        dist.init_process_group(
            "gloo",
            rank=rank.rank,
            world_size=rank.world_size,
            store=self._scene.store(rank.rank),
            timeout=_GROUP_TIMEOUT,
        )

    def _leave(self, rank: int) -> None:
        self._states[rank] = self._process.read()

    def _enter(self, rank: int) -> None:
        self._process.write(self._states[rank])

    def _stuck(self, waits: Mapping[int, Wait]) -> Mapping[int, RankStopped]:
        return stopped(waits, self._outcomes)

    def _current_store(self) -> private.Store:
        return self._scene.store(self._scene.current_rank())

    def _current_mark(self) -> int:
        return self._marks[self._scene.current_rank()]

    def _start_thread(self, thread: threading.Thread) -> None:
        # A program that parks its rank and goes on in a thread of its own is still that rank.
        setattr(thread, RANK_OF_THREAD, self._scene.turns.current)
        _start(thread)


def _interrupt(thread: threading.Thread) -> None:
    """Have `Abandoned` raised in a thread, as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Abandoned)
    )
