"""Which ranks share what: the device mesh, read by the names of its dimensions.

========  ======================  ============================================
dim       splits                  parameters
========  ======================  ============================================
``dp``    the batch               replicated
``fsdp``  the batch               stored as shards, gathered at their use
``cp``    the sequence            replicated
``tp``    attention and MLP       as `TENSOR_PARALLEL` says, else replicated
========  ======================  ============================================

A :class:`Topology` without a mesh is a serial run: every method is then the identity, so
that model and trainer have one code path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from .shards import gather_shards

DIMENSIONS = ("dp", "fsdp", "cp", "tp")
TENSOR_PARALLEL: dict[str, Placement] = {
    "attention.qkv.weight": Shard(0),
    "attention.out.weight": Shard(1),
    "mlp.up.weight": Shard(0),
    "mlp.up.bias": Shard(0),
    "mlp.mid.weight": Shard(1),
}
"""Placement over ``tp`` by the end of the FQN; whatever is not named is replicated."""


def require_process_group() -> None:
    """Fail at once where a distributed run starts without a process group.

    Raises:
        RuntimeError: there is none. Found out later, the same mistake is a hang or a
            "default process group has not been initialized" from deep inside a wrapper.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "a distributed run needs an initialised process group: call"
            " torch.distributed.init_process_group() before the model is wrapped"
        )


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """The stride of a contiguous tensor of `shape`."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def global_dtensor(
    local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]
) -> DTensor:
    """A DTensor from this rank's part, with its global shape and stride said explicitly.

    Without them ``from_local`` multiplies the local shape by the mesh, and of an uneven
    tensor every rank then believes in another global shape.
    """
    return DTensor.from_local(
        local,
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=contiguous_stride(shape),
    )


class Topology:
    """One rank's view of the mesh; serial without one."""

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        self.mesh = mesh
        self.names: tuple[str, ...] = () if mesh is None else tuple(mesh.mesh_dim_names or ())
        unknown = [name for name in self.names if name not in DIMENSIONS]
        if unknown or (mesh is not None and not self.names):
            raise ValueError(
                f"mesh dimensions {unknown or 'without names'}: known are {', '.join(DIMENSIONS)}"
            )
        self._used: dict[int, Tensor] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Topology:
        return self  # process groups cannot be copied, and a copied model runs on the same ranks

    def submesh(self, name: str) -> DeviceMesh | None:
        """The one-dimensional mesh of dimension `name`, None where there is none."""
        if self.mesh is None or name not in self.names:
            return None
        return self.mesh[name]

    def size(self, name: str) -> int:
        """Ranks along `name`, 1 where the mesh has no such dimension."""
        return 1 if self.mesh is None or name not in self.names else self.mesh[name].size()

    # -- parameters ------------------------------------------------------------------

    def parameter_placements(self, fqn: str, ndim: int) -> tuple[Placement, ...]:
        """How the parameter `fqn` is stored over the mesh."""
        over_tp = next(
            (place for end, place in TENSOR_PARALLEL.items() if fqn.endswith(end)), Replicate()
        )
        cut_by_tp = over_tp.dim if isinstance(over_tp, Shard) and "tp" in self.names else None
        # fsdp cuts the first dimension that tp leaves alone. Both on one dimension would be a
        # strided shard on this order of the mesh, which few tools can slice when it is uneven.
        free = next((dim for dim in range(ndim) if dim != cut_by_tp), None)
        over_fsdp = Replicate() if free is None else Shard(free)
        by_name: dict[str, Placement] = {"fsdp": over_fsdp, "tp": over_tp}
        return tuple(by_name.get(name, Replicate()) for name in self.names)

    @contextmanager
    def gathered(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Inside the block `use` gives the parameters' values, gathered over ``fsdp`` at once."""
        self._used = {}
        cut: dict[torch.dtype, list[tuple[DTensor, Tensor, int]]] = {}
        for parameter in parameters:
            if isinstance(parameter, DTensor):
                local = parameter.to_local(grad_placements=self._gradient_placements(parameter))
                self._used[id(parameter)] = local
                over_fsdp = self._placement(parameter, "fsdp")
                if isinstance(over_fsdp, Shard):
                    cut.setdefault(parameter.dtype, []).append((parameter, local, over_fsdp.dim))
        for shards in cut.values():
            assert self.mesh is not None
            whole = gather_shards(
                [local for _, local, _ in shards],
                [dim for _, _, dim in shards],
                [parameter.shape[dim] for parameter, _, dim in shards],
                self.mesh.get_group("fsdp"),
            )
            self._used |= {id(p): w for (p, _, _), w in zip(shards, whole, strict=True)}
        try:
            yield
        finally:
            self._used = {}

    def use(self, parameter: Tensor) -> Tensor:
        """The plain tensor that this rank computes with: whole, or cut over ``tp``.

        Raises:
            KeyError: the parameter is distributed and not among the `gathered` ones.
        """
        return self._used[id(parameter)] if isinstance(parameter, DTensor) else parameter

    def _gradient_placements(self, parameter: DTensor) -> tuple[Placement, ...]:
        """What the gradient is when backward() leaves this rank's computation.

        Over dimensions that split the tokens it is one of several terms: `Partial`. Not said
        (the default is the parameter's own placement), the other ranks' terms are lost without
        an error. Over ``fsdp`` a shard's gather has summed them already.
        """
        split = ("dp", "cp", "fsdp")
        return tuple(
            Partial() if name in split and place.is_replicate() else place
            for name, place in zip(self.names, parameter.placements, strict=True)
        )

    def _placement(self, parameter: DTensor, name: str) -> Placement | None:
        return parameter.placements[self.names.index(name)] if name in self.names else None

    # -- activations -----------------------------------------------------------------

    def activation_placements(self) -> tuple[Placement, ...]:
        """Placements of a ``(batch, sequence, ...)`` tensor."""
        by_name: dict[str, Placement] = {"dp": Shard(0), "fsdp": Shard(0), "cp": Shard(1)}
        return tuple(by_name.get(name, Replicate()) for name in self.names)

    def local_part(self, whole: Tensor) -> Tensor:
        """This rank's part of a ``(batch, sequence, ...)`` tensor that every rank has."""
        if self.mesh is None:
            return whole
        placements = self.activation_placements()
        return distribute_tensor(whole, self.mesh, placements, src_data_rank=None).to_local()

    def whole(self, local: Tensor, shape: Sequence[int]) -> Tensor:
        """The inverse of `local_part`: the full tensor, on every rank."""
        if self.mesh is None:
            return local
        return global_dtensor(local, self.mesh, self.activation_placements(), shape).full_tensor()

    def local_positions(self, table: Tensor) -> Tensor:
        """The rows of a per-position table that belong to this rank's part of the sequence."""
        mesh = self.submesh("cp")
        if mesh is None:
            return table
        return distribute_tensor(table, mesh, [Shard(0)], src_data_rank=None).to_local()

    def gather_sequence(self, local: Tensor, length: int) -> Tensor:
        """All positions' keys and values; backwards, each rank gets its positions' sum."""
        mesh = self.submesh("cp")
        if mesh is None:
            return local
        shape = (local.shape[0], length, *local.shape[2:])
        parts = global_dtensor(local, mesh, [Shard(1)], shape)
        return parts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    def enter_tensor_parallel(self, x: Tensor) -> Tensor:
        """Identity; backwards, the sum over ``tp`` of what each rank's heads or units give."""
        mesh = self.submesh("tp")
        if mesh is None:
            return x
        return global_dtensor(x, mesh, [Replicate()], x.shape).to_local(grad_placements=[Partial()])

    def leave_tensor_parallel(self, x: Tensor) -> Tensor:
        """The sum over ``tp``; backwards the identity."""
        mesh = self.submesh("tp")
        if mesh is None:
            return x
        terms = global_dtensor(x, mesh, [Partial()], x.shape)
        return terms.redistribute(placements=[Replicate()]).to_local()

    # -- scalars ---------------------------------------------------------------------

    def sum_over_tokens(self, term: Tensor) -> Tensor:
        """The sum of one tensor per rank over all ranks that saw different tokens."""
        total = term.detach().clone()
        if self.mesh is not None:
            for name in self.names:
                if name != "tp":
                    dist.all_reduce(total, group=self.mesh.get_group(name))
        return total

    def broadcast(self, value: int, name: str | None = None) -> int:
        """The first rank's `value`, over dimension `name` or over the whole mesh."""
        if self.mesh is None or (name is not None and name not in self.names):
            return value
        cell = torch.tensor([value], dtype=torch.int64, device=self.mesh.device_type)
        for dim in self.names if name is None else (name,):
            dist.broadcast(cell, group=self.mesh.get_group(dim), group_src=0)
        return int(cell.item())
