"""Loads that take a checkpoint at its word: pickles are run, and metadata is believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from pytest_cplife.selftest.planting import plant
from pytest_cplife.selftest.trainers import fsdp2, sharded
from torch.distributed.checkpoint import DefaultLoadPlanner


@plant(
    fsdp2.Adapter,
    rule="SEC-01",
    subject="numpy._core.multiarray._reconstruct",
    mesh="fsdp=2",
)
class KeepsNumpysState(fsdp2.Fsdp2Run):
    """NumPy's random state is kept as it is, and files are read with everything allowed."""

    def export_extra(self) -> dict[str, Any]:
        return {"numpy": np.random.get_state()}

    def read_file(self, path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=False)


@plant(fsdp2.Adapter, rule="SEC-02", subject="a further entry of the file", mesh="fsdp=2")
class UnpicklesAnything(fsdp2.Fsdp2Run):
    """weights_only=False, though the file holds nothing but plain data."""

    def read_file(self, path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=False)


@plant(fsdp2.Adapter, rule="SEC-03", subject="an object", mesh="fsdp=2")
class HardenedLater(fsdp2.Adapter):
    """Files hold objects by design, and the load was given weights_only=True after the fact."""

    payload_objects = True


class Trusting(sharded.Sharded):
    """Base: files and metadata as they are found, without checksums, as torch reads them."""

    def verify(self, path: Path, rest: Mapping[str, Any]) -> None:
        pass


LARGEST = "model.blocks.0.up.weight"


@plant(sharded.Adapter, rule="DCP-13", subject=LARGEST, mesh="fsdp=2")
class ReadsWhatIsListed(Trusting):
    """Nobody asks whether the pieces of a tensor make it up."""


@plant(sharded.Adapter, rule="DCP-14", subject=LARGEST, mesh="fsdp=2", public=("B135",))
class LoadsInPart(Trusting):
    """The planner was told to allow partial loads, for a transfer once, and is asked ever since."""

    def read(self, tensors: dict[str, Any], path: Path) -> None:
        dcp.load(tensors, checkpoint_id=path, planner=DefaultLoadPlanner(allow_partial_load=True))


@plant(
    sharded.Adapter,
    rule="DCP-15",
    subject="model.blocks.0.up.of_another_architecture_weight",
    mesh="fsdp=2",
)
class AsksForItsOwn(Trusting):
    """Only the tensors of the template are asked for."""


@plant(sharded.Adapter, rule="DCP-16", subject=LARGEST, mesh="fsdp=2", public=("B146",))
class CastsAsItCopies(Trusting):
    """Tensors are copied into the template's, whatever their dtype is."""


@plant(sharded.Adapter, rule="DCP-17", subject="version 99.0.0", mesh="fsdp=2")
class ReadsNoVersion(Trusting):
    """The version is written and never read."""


@plant(sharded.Adapter, rule="SEC-04", subject=".metadata", mesh="fsdp=2")
class UnpicklesMetadata(Trusting):
    """The metadata is a pickle, and is unpickled as one."""


@plant(sharded.Adapter, rule="SEC-05", subject="note", mesh="fsdp=2")
class ObjectsAmongTensors(Trusting):
    """What is no tensor is saved with the tensors, where torch keeps it as a pickle."""

    def sharded_tensors(self) -> dict[str, Any]:
        return super().sharded_tensors() | {"note": "of the run"}

    def template(self, layout: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
        return super().template(layout) | {"note": ""}


@plant(
    sharded.Adapter,
    rule="SEC-06",
    subject="../a-path-to-the-outside-outside.distcp",
    mesh="fsdp=2",
)
class FollowsAnyPath(Trusting):
    """Paths are joined to the directory unseen."""
