"""From the serial module to the distributed one: device first, then DTensor, then a check."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from .placeholder import replace_with_placeholders
from .topology import Topology, require_process_group


def wrap(
    module: nn.Module,
    topology: Topology,
    device: torch.device | str,
    placeholders: Collection[str] = (),
) -> nn.Module:
    """Distribute `module` over the topology's mesh, in place; returns it.

    Names and order of registration stay the serial model's. Without a mesh the module only
    moves to its device.

    Raises:
        RuntimeError: there is no process group.
        ValueError: a tensor is on the meta or on a wrong device, or the mesh does not fit.
    """
    if topology.mesh is not None:
        require_process_group()
        _check_heads(module, topology)
    _refuse_meta(module)
    # The device comes first: DTensor takes the mesh's word for where the local tensors are,
    # and a module that moves afterwards leaves its parameters' specs behind.
    module.to(device)
    for part in module.modules():
        if isinstance(getattr(part, "topology", None), Topology):
            part.topology = topology  # type: ignore[assignment]
    if topology.mesh is None:
        return module
    replace_with_placeholders(module, placeholders)
    distribute_parameters(module, topology)
    validate(module, topology.mesh)
    return module


def distribute_parameters(module: nn.Module, topology: Topology) -> None:
    """Replace every parameter by a DTensor with rank 0's values; tied ones stay tied."""
    mesh = topology.mesh
    if mesh is None:
        return
    distributed: dict[int, nn.Parameter] = {}
    for prefix, part in module.named_modules():
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if isinstance(parameter, DTensor):
                continue
            fqn = f"{prefix}.{name}" if prefix else name
            if parameter.device.type != mesh.device_type:
                raise ValueError(
                    f"{fqn!r} is on {parameter.device}, the mesh on {mesh.device_type!r}:"
                    " move the module to its device before it is wrapped"
                )
            if id(parameter) not in distributed:
                placements = topology.parameter_placements(fqn, parameter.ndim)
                # Not `from_local` of what each rank has: the values are rank 0's on every
                # rank, even where the ranks' initial weights were not the same.
                shared = distribute_tensor(parameter.detach(), mesh, placements)
                distributed[id(parameter)] = nn.Parameter(
                    shared, requires_grad=parameter.requires_grad
                )
            part.register_parameter(name, distributed[id(parameter)])


def validate(module: nn.Module, mesh: DeviceMesh) -> None:
    """Check that every trainable parameter is a DTensor on `mesh`.

    Raises:
        ValueError: some are not; the message names them all.
    """
    wrong = [
        f"{fqn!r} is a plain {type(parameter.data).__name__}"
        if not isinstance(parameter, DTensor)
        else f"{fqn!r} is on another mesh ({parameter.device_mesh})"
        for fqn, parameter in module.named_parameters()
        if parameter.requires_grad
        and not (isinstance(parameter, DTensor) and parameter.device_mesh == mesh)
    ]
    if wrong:
        raise ValueError(f"not every trainable parameter is distributed: {'; '.join(wrong)}")


def _refuse_meta(module: nn.Module) -> None:
    state = [*module.named_parameters(), *module.named_buffers()]
    meta = [name for name, tensor in state if tensor.is_meta]
    if meta:
        raise ValueError(
            f"{', '.join(map(repr, meta))} on the meta device hold no values: materialise the"
            " module (to_empty, then load or initialise it) before it is wrapped"
        )


def _check_heads(module: nn.Module, topology: Topology) -> None:
    heads = getattr(getattr(module, "config", None), "heads", None)
    ranks = topology.size("tp")
    if isinstance(heads, int) and heads % ranks:
        raise ValueError(f"{heads} attention heads do not divide over tp={ranks}")
