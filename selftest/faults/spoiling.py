"""Faults with damaged plain files: CRASH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2
from pytest_cplife.selftest.trainers.loop import check_records


@plant(fsdp2.Adapter, rule="CRASH-25", subject="nothing in it", mesh="fsdp=2")
class FreshIfUnreadable(fsdp2.Fsdp2Run):
    """A file that cannot be read is taken as none, and training starts at the beginning."""

    def load(self, path: Path) -> None:
        try:
            super().load(path)
        except Exception as error:
            self._log = str(error)


@plant(fsdp2.Adapter, rule="CRASH-25", subject="offer a spoiled file (spoiled)", mesh="fsdp=2")
class ReadsOnOneRank(fsdp2.Fsdp2Run):
    """Rank 0 reads for all, and raises before it has told the others anything."""

    def read_file(self, path: Path) -> Any:
        payload = [super().read_file(path) if self.ctx.rank == 0 else None]
        dist.broadcast_object_list(payload, src=0)
        return payload[0]


class Unchecked(fsdp2.Fsdp2Run):
    """The file is read as it is found, as torch does it."""

    def read_file(self, path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=True)


@plant(fsdp2.Adapter, rule="CRASH-26", subject="a flipped bit", mesh="fsdp=2")
class NoChecksums(Unchecked):
    __doc__ = Unchecked.__doc__


@plant(fsdp2.Adapter, rule="CRASH-27", subject="embed.weight", mesh="fsdp=2")
class ChecksAfterwards(Unchecked):
    """Checksums are compared when everything is in its place already."""

    def load(self, path: Path) -> None:
        super().load(path)
        check_records(path)


@plant(fsdp2.Adapter, rule="CRASH-28", subject="format_version 101", mesh="fsdp=2")
class VersionForNobody(fsdp2.Fsdp2Run):
    """The version is written and never read."""

    def export_extra(self) -> dict[str, Any]:
        return super().export_extra() | {"format_version": 1}
