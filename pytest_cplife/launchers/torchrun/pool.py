"""A pool whose ranks run wherever the agents do; a drop-in for one of this machine's own ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.messages import PoolSpec
from pytest_cplife.launchers.pool import Ending, reserve_port
from pytest_cplife.launchers.torchrun.hub import Hub


@dataclass(eq=False, slots=True)
class DistantRank:
    """One rank, as rank 0 knows it: two channels to it, and what its agent tells of it."""

    hub: Hub
    world: int
    rank: int
    control: Channel
    watch: Channel
    ending: Ending | None = None
    # It may run on another machine.
    same_clock: bool = False

    def poll(self) -> Ending | None:
        """How the process ended, None while it lives.

        Raises:
            RunEnded: an agent has gone.
        """
        if self.ending is None:
            self.hub.look()
            self.ending = self.hub.ending(self.world, self.rank)
        return self.ending

    def send_signal(self, number: int) -> None:
        self.hub.send_signal(self.world, self.rank, number)


class DistantPool:
    """The ranks 0 to `size` - 1 of those that were given, each in a fresh process."""

    def __init__(
        self,
        hub: Hub,
        size: int,
        *,
        device: str,
        backend: str,
        serial: bool,
        bare: bool,
        detail: bool,
    ) -> None:
        self._hub = hub
        self.owner = os.getpid()
        hub.gather()
        # Rank 0 of any world runs on this machine. The second port is for the trainer's own use.
        self._reserved = [reserve_port(""), reserve_port("")]
        (_, store_port), (_, master_port) = self._reserved
        self.spec = PoolSpec(
            size=size,
            device=device,
            backend=backend,
            folder="",  # each agent's own
            master_port=master_port,
            serial=serial,
            bare=bare,
            detail=detail,
            master_addr=hub.given.host,
            store_port=store_port,
            places=hub.places(size),
        )
        self._world: int | None = hub.number()
        self._ranks: list[DistantRank] = []
        try:
            for rank, (control, watch) in enumerate(hub.start(self._world, self.spec)):
                self._ranks.append(DistantRank(hub, self._world, rank, control, watch))
        except BaseException:
            self.close()
            raise

    @property
    def ranks(self) -> Sequence[DistantRank]:
        return self._ranks

    @property
    def alive(self) -> bool:
        return bool(self._ranks) and all(rank.poll() is None for rank in self._ranks)

    def output(self, rank: int) -> str:
        """The end of what `rank` has written in its last call."""
        return "" if self._world is None else self._hub.output(self._world, rank)

    def close(self) -> None:
        if os.getpid() != self.owner or self._world is None:
            return
        world, self._world = self._world, None
        for rank in self._ranks:
            for channel in (rank.control, rank.watch):
                channel.close()
        self._ranks = []
        for holder, _ in self._reserved:
            with contextlib.suppress(OSError):
                holder.close()
        self._hub.end(world, self.spec.size)
