"""Suite "round trip": through the adapter's `to_plain` and back through its `realign`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from pytest_cplife.evidence.observe import view_mesh, view_placement
from pytest_cplife.fuzz import trees, values
from pytest_cplife.fuzz.build import build, to_bytes, torch_placement
from pytest_cplife.fuzz.ranks import Reports, adapter_of, guarded
from pytest_cplife.fuzz.tensors import DTYPES, TensorSpec
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation

STRIDE = "realign: stride"
"""The moment of a violation by a stride that is not the template's."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A tree of tensors on a mesh."""

    mesh: MeshSpec
    tree: trees.Tree


def try_round_trip(rank: Rank, example: RoundTrip, adapter: str, folder: Path) -> Reports:
    """On a rank: what is wrong with the way to plain tensors and back."""
    return guarded(rank, folder, lambda: list(_round_trip(rank, example, adapter)))


def _round_trip(rank: Rank, example: RoundTrip, target: str) -> Iterator[Violation]:
    adapter, mesh = adapter_of(target), rank.mesh(example.mesh)
    live = build(example.tree, mesh)
    plain = adapter.to_plain(live)
    yield from _compare(example.tree, live, mesh, "input of to_plain", sharded=True)
    yield from _compare(example.tree, plain, mesh, "to_plain", sharded=False)
    # The template has other values: a `realign` that hands it back is not taken for a right one.
    template = build(_others(example.tree), mesh)
    back = adapter.realign(plain, template)
    yield from _compare(example.tree, back, mesh, "realign", sharded=True)


def gathered_dtypes(rank: Rank) -> tuple[str, ...]:
    """On a rank: the dtypes that the backend can gather, so that `full_tensor` is possible."""
    found = []
    for dtype in DTYPES:
        mine = torch.zeros(1, dtype=getattr(torch, dtype), device=rank.device)
        try:
            dist.all_gather([torch.empty_like(mine) for _ in range(rank.world_size)], mine)
        except (RuntimeError, TypeError, ValueError):
            continue
        found.append(dtype)
    return tuple(found)


def _others(tree: trees.Tree) -> trees.Tree:
    if isinstance(tree, TensorSpec):
        return replace(tree, seed=tree.seed + 5)
    if isinstance(tree, trees.Branch):
        return replace(tree, children=tuple(map(_others, tree.children)))
    return tree


def _compare(
    tree: trees.Tree, seen: Any, mesh: DeviceMesh, moment: str, *, sharded: bool, path: str = ""
) -> Iterator[Violation]:
    """Find where `seen` is not what `tree` describes."""
    subject = path or "it"
    if isinstance(tree, TensorSpec):
        yield from check_tensor(tree, seen, mesh, moment, subject, sharded=sharded)
    elif isinstance(tree, trees.Leaf):
        if type(seen) is not type(tree.value) or seen != tree.value:
            yield Violation(subject, repr(tree.value), repr(seen)[:200], f"{moment}: value")
    else:
        wanted, found = _container(tree), _kind(seen)
        children = trees.children_of(seen)
        if found != wanted or children is None or len(children) != len(tree.children):
            yield Violation(subject, wanted, found, f"{moment}: structure")
            return
        for step, child, value in zip(trees.steps(tree), tree.children, children, strict=True):
            yield from _compare(child, value, mesh, moment, sharded=sharded, path=f"{path}{step}")


def _container(branch: trees.Branch) -> str:
    if branch.kind in ("dict", "ordered"):
        return f"mapping of {sorted(branch.keys)}"
    return {"named": "Pair", "box": "Box"}.get(
        branch.kind, f"{branch.kind} of {len(branch.children)}"
    )


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"mapping of {sorted(map(str, value))}"
    if isinstance(value, (trees.Pair, trees.Box)) or is_dataclass(value):
        return type(value).__name__
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def check_tensor(
    spec: TensorSpec,
    seen: Any,
    mesh: DeviceMesh,
    moment: str,
    subject: str,
    *,
    sharded: bool,
    whole: values.Bytes | None = None,
) -> Iterator[Violation]:
    """Find where `seen` is not the described tensor: as it is, or (not `sharded`) made plain.

    Args:
        whole: the bytes of all of it, where they are not those that `spec` describes.
    """

    def wrong(what: str, expected: object, observed: object) -> Violation:
        return Violation(subject, str(expected), str(observed), f"{moment}: {what}")

    as_dtensor = sharded and spec.placements is not None
    kind = "DTensor" if as_dtensor else "Tensor"
    if not isinstance(seen, torch.Tensor) or isinstance(seen, DTensor) is not as_dtensor:
        yield wrong("kind", kind, type(seen).__name__)
        return
    if seen.dtype != getattr(torch, spec.dtype):
        yield wrong("dtype", spec.dtype, str(seen.dtype).removeprefix("torch."))
        return
    if tuple(seen.shape) != spec.shape:
        yield wrong("shape", spec.shape, tuple(seen.shape))
        return
    if isinstance(seen, DTensor):
        yield from _layout_problems(spec, seen, mesh, wrong)
        local = seen.to_local()
        expected = values.local_bytes(spec, tuple(mesh.shape), mesh.get_coordinate() or (), whole)
        if tuple(local.shape) != expected.shape[:-1]:
            yield wrong("local shape", expected.shape[:-1], tuple(local.shape))
            return
    else:
        local = seen
        expected = values.full_bytes(spec, tuple(mesh.shape)) if whole is None else whole
    observed = to_bytes(local)
    if not np.array_equal(observed, expected):
        yield wrong("bytes", *_first_difference(expected, observed))


def _layout_problems(
    spec: TensorSpec, seen: DTensor, mesh: DeviceMesh, wrong: Any
) -> Iterator[Violation]:
    if view_mesh(seen.device_mesh) != view_mesh(mesh):
        yield wrong("mesh", view_mesh(mesh), view_mesh(seen.device_mesh))
    wanted = tuple(view_placement(torch_placement(text)) for text in spec.placements or ())
    found = tuple(map(view_placement, seen.placements))
    if found != wanted:
        yield wrong("placements", _list(wanted), _list(found))
    # Without two elements in a row there is no stride to speak of.
    if spec.numel > 1 and not _same_stride(spec.shape, spec.stride, seen.stride()):
        yield wrong("stride", spec.stride, tuple(seen.stride()))


def _same_stride(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y for size, x, y in zip(shape, a, b, strict=True) if size > 1)


def _list(items: Sequence[object]) -> str:
    return f"[{', '.join(map(str, items))}]"


def _first_difference(expected: values.Bytes, observed: values.Bytes) -> tuple[str, str]:
    apart = (expected != observed).any(axis=-1)
    where = tuple(int(i) for i in np.argwhere(apart)[0])
    count = int(apart.sum())
    return (
        f"bytes {expected[where].tobytes().hex()} at {where}",
        f"bytes {observed[where].tobytes().hex()} there; {count} of {apart.size} elements differ",
    )
