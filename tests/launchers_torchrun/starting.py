"""Starting ranks the way users do, and never waiting for them without an end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = "tests/launchers_torchrun"
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
LAUNCHER = "--cplife-launcher=torchrun"
_SECONDS = 240.0


@dataclass(frozen=True)
class Said:
    """How one command ended, and all that it printed."""

    status: int
    text: str


def torchrun(*arguments: str, pytest: Sequence[str]) -> list[str]:
    """The command line of torchrun with its own arguments, around one of pytest."""
    return [sys.executable, "-m", "torch.distributed.run", *arguments, *PYTEST, LAUNCHER, *pytest]


def slurm_task(*pytest: str) -> list[str]:
    """The command line of a task that srun starts."""
    return [sys.executable, *PYTEST, LAUNCHER, *pytest]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what it may itself be a rank of."""
    strange = ("SLURM_", "TORCHELASTIC_", "MASTER_", "PYTEST_", "ROLE_", "GROUP_", "LOCAL_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(strange)}
    for name in ("RANK", "WORLD_SIZE"):
        kept.pop(name, None)
    return {**kept, **more}


def run_all(*commands: tuple[Sequence[str], Mapping[str, str]], folder: Path = ROOT) -> list[Said]:
    """Run commands side by side in `folder` until the last has ended.

    Raises:
        AssertionError: one does not end; all are killed with all that they have started.
    """
    processes = [
        subprocess.Popen(
            command,
            cwd=folder,
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command, environment in commands
    ]
    said, hung = [], False
    for process in processes:
        try:
            text, _ = process.communicate(timeout=0.1 if hung else _SECONDS)
        except subprocess.TimeoutExpired:
            hung = True
            os.killpg(process.pid, signal.SIGKILL)
            text = "HUNG\n" + process.communicate()[0]
        said.append(Said(process.returncode, text))
    assert not hung, "\n\n".join(one.text for one in said)
    return said


def run(command: Sequence[str], *, folder: Path = ROOT, **environment: str) -> Said:
    (said,) = run_all((command, environment), folder=folder)
    return said


def left_behind(temporary: Path) -> list[str]:
    """Folders in `temporary`, and processes that have been started with it as theirs."""
    left = [f"folder {path}" for path in temporary.glob("cplife-*")]
    mine = f"TMPDIR={temporary}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if mine in (process / "environ").read_bytes().split(b"\0"):
                left.append(f"process {process.name}")
    return left
