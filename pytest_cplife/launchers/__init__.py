"""Launchers: how ranks come to be."""

from __future__ import annotations

from pytest_cplife.launchers.base import Launcher

LAUNCHERS = ("processes",)
"""Names that `make_launcher` accepts."""


def make_launcher(
    name: str, *, device: str = "cpu", backend: str = "auto", timeout: float = 120.0
) -> Launcher:
    """The launcher `name`.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        backend: a torch.distributed backend; ``"auto"`` is nccl on CUDA and gloo elsewhere.
        timeout: seconds that a call may take where it says nothing else.

    Raises:
        ValueError: there is no launcher of that name.
    """
    if name == "processes":
        from pytest_cplife.launchers.simple.processes import ProcessesLauncher

        return ProcessesLauncher(device=device, backend=backend, timeout=timeout)
    raise ValueError(f"no launcher {name!r}; accepted are {', '.join(LAUNCHERS)}")
