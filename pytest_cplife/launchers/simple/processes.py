"""The `processes` launcher: persistent pools of forked ranks with real gloo or NCCL."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pytest_cplife.launchers.base import FailureKind, Launcher, RankFailure, World, WorldFailure
from pytest_cplife.launchers.simple.warmup import warm_up
from pytest_cplife.launchers.simple.worker import Berth, serve

_GRACE = 1.0
"""Seconds that the other ranks get, after a first failure, to say what they met."""
_START = 60.0
_NOISE = ("connection closed", "connection reset", "timed out", "broken pipe", "aborted")
_TAIL = 4000


class ProcessesLauncher(Launcher):
    """One pool per world size and lane, live across calls; see :class:`ProcessWorld`."""

    name = "processes"

    def __init__(
        self, *, device: str = "cpu", backend: str = "auto", timeout: float = 120.0
    ) -> None:
        self._device = device
        self._backend = {"cuda": "nccl"}.get(device, "gloo") if backend == "auto" else backend
        self._timeout = timeout
        self._worlds: dict[tuple[int, str, str], ProcessWorld] = {}

    def world(self, size: int, lane: str = "main", *, bare: bool = False) -> World:
        return self._world(size, lane, "bare" if bare else "group")

    def serial_world(self, lane: str = "main") -> World:
        return self._world(1, lane, "serial")

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()

    def _world(self, size: int, lane: str, kind: str) -> ProcessWorld:
        key = (size, lane, kind)
        if key not in self._worlds:
            self._worlds[key] = ProcessWorld(size, kind, self._device, self._backend, self._timeout)
        return self._worlds[key]


class ProcessWorld(World):
    """A pool of forked ranks.

    The pool is made at the first call and serves until it is closed or a call fails; the call
    after a failure gets a fresh one. A bare pool, whose ranks make the process group themselves,
    serves one call only.
    """

    def __init__(self, size: int, kind: str, device: str, backend: str, timeout: float) -> None:
        self.size = size
        self._kind = kind
        self._device = device
        self._backend = backend
        self._timeout = timeout
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder: Path | None = None

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        if not self._processes:
            self._start()
        start = time.monotonic()
        outputs = [self._output(rank).stat().st_size for rank in range(self.size)]
        order = pickle.dumps((fn, args))
        for pipe in self._pipes:
            pipe.send_bytes(order)
        answers = self._collect(start + (self._timeout if timeout is None else timeout))
        results, failures = self._sort(answers, outputs)
        if failures or self._kind == "bare":
            self.close()
        if failures:
            raise WorldFailure(tuple(failures), time.monotonic() - start)
        return results

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        warm_up()
        self._folder = Path(tempfile.mkdtemp(prefix="cplife-"))
        context = multiprocessing.get_context("fork")
        port = _free_port() if self._kind == "bare" else 0
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            berth = Berth(
                rank=rank,
                size=self.size,
                serial=self._kind == "serial",
                device=self._device,
                backend=self._backend,
                store=str(self._folder / "store") if self._kind == "group" else "",
                port=port,
                # The pool's own deadline comes first, and says more than gloo's.
                timeout=max(4 * self._timeout, 600.0),
                output=str(self._output(rank)),
            )
            process = context.Process(  # type: ignore[attr-defined]
                target=_enter, args=(berth, theirs, [*self._pipes, ours]), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        answers = self._collect(time.monotonic() + _START)
        _, failures = self._sort(answers, [0] * self.size)
        if failures:
            self.close()
            raise WorldFailure(tuple(failures), _START)

    def _output(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder / f"rank{rank}.txt"

    def _collect(self, deadline: float) -> dict[int, tuple[str, float, Any]]:
        """What each rank answered until all have, the deadline is over, or one has failed."""
        answers: dict[int, tuple[str, float, Any]] = {}
        while len(answers) < self.size:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            waiting = [rank for rank in range(self.size) if rank not in answers]
            sources: dict[Any, int] = {self._pipes[rank]: rank for rank in waiting}
            sources.update({self._processes[rank].sentinel: rank for rank in waiting})
            for source in connection.wait(list(sources), left):
                rank = sources[source]
                if rank not in answers:
                    answers[rank] = self._answer(rank)
                    if answers[rank][0] not in ("ok", "ready"):
                        deadline = min(deadline, time.monotonic() + _GRACE)
        return answers

    def _answer(self, rank: int) -> tuple[str, float, Any]:
        """What a rank sent, or how it died if it sent nothing."""
        pipe, process = self._pipes[rank], self._processes[rank]
        try:
            if pipe.poll():
                answer: tuple[str, float, Any] = pickle.loads(pipe.recv_bytes())
                return answer
        except (EOFError, OSError):
            pass
        process.join(_GRACE)
        code = process.exitcode
        text = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        kind = "killed" if code is not None and code < 0 else "exited"
        return kind, time.monotonic(), ("process ended", text, "")

    def _sort(
        self, answers: dict[int, tuple[str, float, Any]], outputs: list[int]
    ) -> tuple[list[Any], list[RankFailure]]:
        bad = {r: a for r, a in answers.items() if a[0] not in ("ok", "ready")}
        failures = []
        # A rank that dies says so late: its end is seen, not sent, so a death comes first.
        for rank, (kind, _, (name, message, text)) in sorted(
            bad.items(), key=lambda item: (_is_noise(item[1]), item[1][1])
        ):
            failures.append(
                RankFailure(
                    rank,
                    _kind(kind),
                    name,
                    message,
                    text,
                    secondary=bool(failures),
                    output=self._tail(rank, outputs[rank]),
                )
            )
        for rank in range(self.size):
            if rank not in answers:
                text = "had not finished"
                failures.append(
                    RankFailure(
                        rank,
                        "hung",
                        "Timeout",
                        text if not bad else f"{text} when rank {failures[0].rank} failed",
                        secondary=bool(bad),
                        output=self._tail(rank, outputs[rank]),
                    )
                )
        return [answers[rank][2] for rank in sorted(answers)], failures

    def _tail(self, rank: int, start: int) -> str:
        with self._output(rank).open("rb") as file:
            file.seek(start)
            return file.read()[-_TAIL:].decode(errors="replace")


def _enter(berth: Berth, pipe: Connection, others: list[Connection]) -> None:
    # A forked rank inherits the parent's ends of the pipes; while it holds them, no rank would see
    # the parent die.
    for other in others:
        other.close()
    serve(berth, pipe)


def _kind(text: str) -> FailureKind:
    kinds: dict[str, FailureKind] = {
        "raised": "raised",
        "exited": "exited",
        "killed": "killed",
        "unserialisable": "unserialisable",
    }
    return kinds[text]


def _is_noise(answer: tuple[str, float, Any]) -> bool:
    """True for an error that another rank's end brings about."""
    kind, _, (_, message, _) = answer
    return kind == "raised" and any(word in message.lower() for word in _NOISE)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
