"""How ranks come to be. :func:`make_launcher` is the only door; each launcher loads when asked for.

Importing this package imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_cplife.launchers.base import Launcher

LAUNCHERS = ("processes", "threads", "torchrun")
"""Names that `make_launcher` accepts."""


def most_ranks(name: str, device: str = "cpu", backend: str = "auto") -> tuple[int, str] | None:
    """How many ranks the launcher called `name` can have here, and why; None: any number.

    Raises:
        RuntimeError: this machine has no such device.
    """
    limits = []
    if device == "cuda":
        from pytest_cplife.launchers.gpus import count_devices

        count = count_devices()
        if name == "processes" and backend in ("auto", "nccl"):
            shown = "1 GPU" if count == 1 else f"{count} GPUs"
            shared = "--cplife-backend=gloo lets ranks share one"
            limits.append((count, f"NCCL takes a GPU for each, of {shown} here ({shared})"))
    if name == "torchrun":
        from pytest_cplife.launchers.torchrun.given import given

        me = given()
        if me is not None:
            limits.append((me.world_size, f"{me.starter} has started {me.world_size}"))
    return min(limits, default=None)


def make_launcher(
    name: str, *, device: str = "cpu", backend: str = "auto", timeout: float = 120.0
) -> Launcher:
    """The launcher called `name`.

    Args:
        name: one of :data:`LAUNCHERS`.
        device: the device type of the ranks, ``"cpu"`` or ``"cuda"``.
        backend: the process group's backend; ``"auto"`` is NCCL on CUDA and gloo elsewhere.
        timeout: seconds that one call on a world may take unless it says otherwise.

    Raises:
        ValueError: there is no such launcher.
        RuntimeError: this process cannot be what the launcher needs.
    """
    from pytest_cplife.launchers.collecting import uncollected

    with uncollected():  # the first of them to be loaded imports DTensor
        chosen = _class_of(name)
    return chosen(device=device, backend=backend, timeout=timeout)


def _class_of(name: str) -> Callable[..., Launcher]:
    if name == "processes":
        from pytest_cplife.launchers.processes import ProcessesLauncher

        return ProcessesLauncher
    if name == "threads":
        from pytest_cplife.launchers.threads.launcher import ThreadsLauncher

        return ThreadsLauncher
    if name == "torchrun":
        from pytest_cplife.launchers.torchrun.launcher import TorchrunLauncher

        return TorchrunLauncher
    accepted = ", ".join(repr(known) for known in LAUNCHERS)
    raise ValueError(f"no launcher {name!r}; accepted is {accepted}")
