"""Becoming rank 0 or one of the others: the two ways into the launcher."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.base import RunEnded
from pytest_cplife.launchers.torchrun.agent import Agent, fork_agent
from pytest_cplife.launchers.torchrun.given import Given
from pytest_cplife.launchers.torchrun.hub import Hub
from pytest_cplife.launchers.torchrun.switchboard import Switchboard
from pytest_cplife.launchers.torchrun.wire import Address, listen

_hub: Hub | None = None


def open_hub() -> Hub:
    """The hub of this process.

    Raises:
        RuntimeError: it is not open.
    """
    if _hub is None:
        raise RuntimeError(
            "the launcher 'torchrun' needs ranks: start pytest with torchrun, or enter "
            "pytest_cplife.launchers.torchrun.entry.lead on rank 0 and call follow on the others"
        )
    return _hub


class Lead:
    """What the block of `lead` ends with, for the ranks that end with it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.status = 1

    def loss(self) -> str:
        """Which ranks have gone by now, in words; empty where all are there."""
        return self._hub.loss()


class NowhereToMeet(RuntimeError):
    """The others cannot reach rank 0 where they have been told to."""


@contextlib.contextmanager
def lead(given: Given, timeout: float) -> Iterator[Lead]:
    """Be rank 0 inside the block; at its end, let the others go.

    Args:
        given: what this process was started as.
        timeout: seconds that the others have to come.

    Raises:
        NowhereToMeet: the port is taken, or cannot be had on this machine.
    """
    global _hub
    listener, address = listen(given.host)
    agent = fork_agent(given, address, listener)
    board = Switchboard(listener, address)
    _hub = Hub(given, board, agent, timeout)
    me, orderly = Lead(_hub), False
    store = None
    try:
        try:
            store = _meet(given, timeout)
            store.set(_key(given), str(address))
        except RuntimeError as error:
            first = str(error).strip().partition("\n")[0]
            raise NowhereToMeet(
                f"rank 0 cannot be met at {given.host}:{given.port} ({first}); "
                "MASTER_ADDR and MASTER_PORT choose another place"
            ) from error
        yield me
        orderly = me.status != 2  # after an interrupt nobody is waited for
    except RunEnded:
        raise
    except BaseException:
        orderly = True
        raise
    finally:
        hub, _hub = _hub, None
        hub.close(me.status, wait=orderly)
        del store


def follow(given: Given, timeout: float) -> int:
    """Be one of the other ranks until rank 0 is done; the status to end with."""
    try:
        store = _meet(given, timeout)
        store.wait([_key(given)], timedelta(seconds=timeout))
        address = Address.parse(store.get(_key(given)).decode())
        del store
        agent = Agent(given, address)
    except (RuntimeError, OSError) as error:
        first = str(error).strip().partition("\n")[0]
        print(
            f"cplife: rank {given.rank} ends: rank 0 was not reached at {given.host}:{given.port} "
            f"within {timeout:g} s ({type(error).__name__}: {first})",
            file=sys.stderr,
            flush=True,
        )
        return 1
    return agent.serve()


def _meet(given: Given, timeout: float) -> Any:
    """Where the processes meet; torchrun serves it, or else rank 0 does."""
    end = time.monotonic() + timeout
    while True:
        try:
            return torch_private.tcp_store(
                given.host,
                given.port,
                serve=given.rank == 0 and not given.store_is_served,
                timeout=timedelta(seconds=timeout),
            )
        except RuntimeError:
            # At first the others find nobody there; the store's own patience is not the same in
            # all of torch's versions.
            if time.monotonic() > end or given.rank == 0:
                raise
            time.sleep(0.2)


def _key(given: Given) -> str:
    return f"cplife/{given.attempt}"
