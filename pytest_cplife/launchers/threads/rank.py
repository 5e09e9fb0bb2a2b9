"""What the function that runs on each rank is given."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_cplife.mesh import MeshSpec

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_TORCHELASTIC = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
# Ranks meet inside the process; the port is only there for programs that insist on reading one.
_PORT = 29500


@dataclass(slots=True)
class ThreadRank:
    """One rank; see :class:`pytest_cplife.launchers.base.Rank`."""

    rank: int
    world_size: int
    device: torch.device
    serial: bool
    meshes: dict[MeshSpec, DeviceMesh] = field(default_factory=dict)

    @property
    def own_process(self) -> bool:
        return False

    def mesh(self, spec: MeshSpec) -> DeviceMesh:
        """The mesh of `spec`, made once per world."""
        if self.serial:
            raise RuntimeError(f"a serial world has no mesh {spec.option!r}")
        if spec.world_size != self.world_size:
            raise RuntimeError(
                f"mesh {spec.option!r} needs {spec.world_size} ranks; this world has "
                f"{self.world_size}"
            )
        if not dist.is_initialized():
            raise RuntimeError(f"there is no process group to make the mesh {spec.option!r} from")
        if spec not in self.meshes:
            self.meshes[spec] = init_device_mesh(
                self.device.type, spec.shape, mesh_dim_names=spec.names
            )
        return self.meshes[spec]

    def variables(self) -> dict[str, str | None]:
        """torchrun's variables of this rank; None where one must be absent."""
        values: dict[str, str | None] = dict.fromkeys((*RANK_VARIABLES, *_TORCHELASTIC))
        if not self.serial:
            values.update(
                RANK=str(self.rank),
                LOCAL_RANK=str(self.rank),
                WORLD_SIZE=str(self.world_size),
                LOCAL_WORLD_SIZE=str(self.world_size),
                GROUP_RANK="0",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(_PORT),
            )
        return values


def device_of(rank: int, kind: str) -> torch.device:
    """Where the tensors of `rank` belong; several ranks share a GPU where there are too few."""
    if kind == "cuda":
        return torch.device("cuda", rank % max(torch.cuda.device_count(), 1))
    return torch.device(kind)
