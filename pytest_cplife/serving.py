"""Under ``--cplife-launcher=torchrun`` rank 0 is pytest; every other rank turns into a server.

The same command line starts all of them. What a rank is, it learns from its environment, here, as
soon as the options are known: before configuration, and so before a header or a report.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_cplife.options import resolve_ranks

if TYPE_CHECKING:
    from pytest_cplife.launchers.torchrun.given import Given

_NAME = "torchrun"


class Others:
    """What a rank does that is not the first."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int | None:
        me = _place(config)
        if me is None or me.rank == 0:
            return None
        from pytest_cplife.launchers.collecting import uncollected

        with uncollected():
            from pytest_cplife.launchers.torchrun.entry import follow

        return follow(me, _patience(config))


class First:
    """What rank 0 does around everything else."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(
        self, config: pytest.Config
    ) -> Generator[None, pytest.ExitCode | int | None, pytest.ExitCode | int | None]:
        me = _place(config)
        if me is None or me.rank > 0 or hasattr(config, "workerinput"):
            return (yield)
        from pytest_cplife.launchers.collecting import uncollected

        with uncollected():
            from pytest_cplife.launchers.torchrun.entry import NowhereToMeet, lead

        try:
            with lead(me, _patience(config)) as role:
                # Whatever goes wrong from here on, the others are let go.
                try:
                    _refuse_workers(config)
                    result = yield
                except pytest.UsageError:
                    role.status = pytest.ExitCode.USAGE_ERROR
                    raise
                loss = "" if result else role.loss()
                if loss:
                    print(f"cplife: {loss}", file=sys.stderr, flush=True)
                    result = pytest.ExitCode.TESTS_FAILED
                role.status = int(result or 0)
        except NowhereToMeet as error:
            raise pytest.UsageError(f"--cplife-launcher={_NAME}: {error}") from None
        return result


def _place(config: pytest.Config) -> Given | None:
    """What this process was started as, where that matters."""
    chosen = config.getoption("cplife_launcher")
    if (config.getini("cplife_launcher") if chosen is None else chosen) != _NAME:
        return None
    from pytest_cplife.launchers.torchrun.given import given

    try:
        me = given()
    except ValueError as error:
        raise pytest.UsageError(f"--cplife-launcher={_NAME}: {error}") from None
    if me is None and chosen is not None:
        raise pytest.UsageError(
            f"--cplife-launcher={_NAME} needs ranks that torchrun or SLURM has started: "
            f"torchrun --nproc-per-node N -m pytest --cplife-launcher={_NAME} ..."
        )
    return me


def _patience(config: pytest.Config) -> float:
    try:
        return resolve_ranks(config).timeout
    except pytest.UsageError:  # rank 0 will say so, and let the others go
        return 60.0


def _refuse_workers(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError(
            f"--cplife-launcher={_NAME} has one set of ranks, which serve one process: leave out -n"
        )
