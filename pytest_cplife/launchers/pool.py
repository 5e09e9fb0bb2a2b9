"""A pool: the forked ranks of one world, from their birth to their end."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.collecting import uncollected
from pytest_cplife.launchers.folders import PrivateFolder
from pytest_cplife.launchers.messages import PoolSpec
from pytest_cplife.launchers.worker import serve

# The parent's ends of every channel of every live pool. A rank forked later inherits them, and
# would keep its elders from ever seeing that the parent is gone, so it closes them first.
_PARENT_ENDS: set[Channel] = set()
_REAP_SECONDS = 30.0
_LOG_TAIL = 8000
_LOG_HEAD = 1000
_FATAL = b"Fatal Python error"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: by `code`, or by `signal` when that is not 0."""

    code: int
    signal: int

    def __str__(self) -> str:
        if self.signal:
            try:
                return f"killed by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"killed by signal {self.signal}"
        return f"exited with status {self.code}"


@dataclass(eq=False, slots=True)
class RankProcess:
    """One forked rank, as the parent knows it."""

    rank: int
    pid: int
    control: Channel
    watch: Channel
    ending: Ending | None = None
    same_clock: bool = True

    def poll(self) -> Ending | None:
        """How the process ended, None while it lives. It stays a zombie until `end`, so that its
        number cannot become another's in the meantime."""
        if self.ending is None:
            try:
                seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # something else in this process has waited for it
                self.ending = Ending(code=-1, signal=0)
            else:
                if seen is not None:
                    exited = seen.si_code == os.CLD_EXITED
                    status = seen.si_status
                    self.ending = Ending(status, 0) if exited else Ending(0, status)
        return self.ending

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill the rank and everything in its session, and take its remains."""
        gone = self.poll()
        if gone is None or gone.code != -1:
            # The rank may not have reached setsid yet, hence the second kill.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            end = time.monotonic() + _REAP_SECONDS
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                    time.sleep(0.002)
        for channel in (self.control, self.watch):
            _PARENT_ENDS.discard(channel)
            channel.close()


class Pool:
    """The ranks of one world. Created alive; ended by `close`, which may be called twice."""

    def __init__(
        self,
        size: int,
        *,
        device: str,
        backend: str,
        serial: bool = False,
        bare: bool = False,
        detail: bool = False,
    ) -> None:
        self._folder = PrivateFolder()
        self._reservation, port = reserve_port()
        self.owner = os.getpid()
        self.spec = PoolSpec(
            size=size,
            device=device,
            backend=backend,
            folder=str(self._folder.path),
            master_port=port,
            serial=serial,
            bare=bare,
            detail=detail,
        )
        self.ranks: Sequence[RankProcess] = []
        # Ranks end by themselves with their parent; the folder would stay.
        atexit.register(self.close)
        try:
            for rank in range(size):
                self.ranks = [*self.ranks, _fork(rank, self.spec)]
        except BaseException:
            self.close()
            raise

    def output(self, rank: int) -> str:
        """The end of what `rank` has written in its last call."""
        return log_tail(self.spec, rank)

    @property
    def alive(self) -> bool:
        return bool(self.ranks) and all(rank.poll() is None for rank in self.ranks)

    def close(self) -> None:
        # A fork of the parent (a rank, a data loader) holds a copy of this object, not the ranks.
        if os.getpid() != self.owner:
            return
        atexit.unregister(self.close)
        for rank in self.ranks:
            rank.end()
        self.ranks = []
        self._reservation.close()
        self._folder.remove()


def log_tail(spec: PoolSpec, rank: int) -> str:
    """The end of a rank's output, and what it died of where the dump of its stacks is longer."""
    try:
        output = Path(spec.log(rank)).read_bytes()
    except FileNotFoundError:
        return ""
    text = output[-_LOG_TAIL:]
    # C++ says why it aborts on the lines before Python's own, and the stacks come after both.
    fatal = output.rfind(_FATAL)
    if 0 <= fatal < len(output) - _LOG_TAIL:
        text = output[max(fatal - _LOG_HEAD, 0) : fatal + _LOG_HEAD] + b"\n[...]\n" + text
    return text.decode(errors="replace")


def reserve_port(host: str = "127.0.0.1") -> tuple[socket.socket, int]:
    """A port of this machine that only those may take who name it.

    It stays bound but does not listen: the kernel gives it to nobody who asks for any port, while
    the trainer's own store, which allows reuse as this does, may listen on it.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder, int(holder.getsockname()[1])


@contextlib.contextmanager
def quiet_fork() -> Iterator[None]:
    """Fork inside: without a warning, and without collecting in the child what the parent left.

    The parent may hold process groups in cycles (a world of the `threads` launcher that failed):
    their end joins threads, which a fork does not copy, and so would never come in a child.
    """
    parent = os.getpid()
    with uncollected(), warnings.catch_warnings():
        # Python 3.12 warns about threads at a fork; see the launcher's documentation.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            yield
        finally:
            if os.getpid() != parent:
                gc.freeze()


def _fork(rank: int, spec: PoolSpec) -> RankProcess:
    control, their_control = Channel.pair()
    watch, their_watch = Channel.pair()
    _PARENT_ENDS.update((control, watch))
    parent = os.getpid()
    with quiet_fork():
        pid = os.fork()
    if pid == 0:
        for channel in _PARENT_ENDS:
            channel.close()
        serve(rank, spec, their_control, their_watch, parent)
    their_control.close()
    their_watch.close()
    return RankProcess(rank, pid, control, watch)
