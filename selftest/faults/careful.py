"""A way to plain tensors and back that is right for every geometry, to plant faults in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from pytest_cplife.evidence.geometry import region
from pytest_cplife.evidence.observe import view_placement
from pytest_cplife.fuzz.bare import Bare


class Careful(Bare):
    """Gathers with torch, and cuts by the oracle, which needs no communication."""

    def to_plain(self, tree: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, self.plain, tree)

    def realign(self, tree: Any, template: Any) -> Any:
        return pytree.tree_map(self.either, tree, template)

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()

    def either(self, value: Any, template: Any) -> Any:
        if isinstance(value, torch.Tensor) and isinstance(template, DTensor):
            return self.aligned(value, template)
        return value

    def aligned(self, value: torch.Tensor, template: DTensor) -> DTensor:
        return wrap(cut(value, template), template)


def cut(value: torch.Tensor, template: DTensor) -> torch.Tensor:
    """The part of `value` that this rank has of `template`."""
    coordinate = template.device_mesh.get_coordinate()
    assert coordinate is not None
    return cut_at(value, template, list(coordinate))


def cut_at(value: torch.Tensor, template: DTensor, coordinate: list[int]) -> torch.Tensor:
    placements = [view_placement(p) for p in template.placements]
    parts = region(value.shape, placements, tuple(template.device_mesh.shape), coordinate)
    for dim, indices in enumerate(parts):
        value = value.index_select(dim, torch.from_numpy(indices))
    return value


def wrap(local: torch.Tensor, template: DTensor, **changes: Any) -> DTensor:
    kept = {"shape": template.shape, "stride": template.stride(), **changes}
    return DTensor.from_local(local, template.device_mesh, template.placements, **kept)


def planted(name: str, **methods: Callable[..., Any]) -> type[Careful]:
    """`Careful` with some methods replaced."""
    return type(name, (Careful,), dict(methods))
