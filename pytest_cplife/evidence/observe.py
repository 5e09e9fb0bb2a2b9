"""Looking at live tensors and values without changing them."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pytest_cplife.evidence.records import MeshView, Placement, Record, TensorRecord, ValueRecord
from pytest_cplife.evidence.store import TensorStore

_meshes: dict[int, tuple[weakref.ref[DeviceMesh], MeshView]] = {}
"""Views of live meshes by identity: torch computes a mesh's ranks anew at every look, and there are
many tensors. Not by equality, since ranks that are threads have equal meshes and each its own
coordinate."""


@functools.lru_cache(maxsize=256, typed=True)
def view_placement(placement: object) -> Placement:
    # FSDP2 over tensor parallelism has a placement class of its own, which is private to torch and
    # no subclass of Shard: known by its split factor.
    factor = getattr(placement, "split_factor", None)
    if factor is not None:
        dim = getattr(placement, "dim", 0)
        return Placement("strided", dim, int(factor), str(placement))
    if isinstance(placement, Shard):
        return Placement("shard", placement.dim, text=str(placement))
    if isinstance(placement, Replicate):
        return Placement("replicate", text=str(placement))
    if isinstance(placement, Partial):
        return Placement("partial", text=f"P({placement.reduce_op})")
    return Placement("unknown", text=repr(placement))


def view_mesh(mesh: DeviceMesh) -> MeshView:
    live, view = _meshes.get(id(mesh), (None, None))
    if view is None or live is None or live() is not mesh:
        view = _view_mesh(mesh)
        key = id(mesh)
        _meshes[key] = weakref.ref(mesh, lambda _: _meshes.pop(key, None)), view
    return view


def _view_mesh(mesh: DeviceMesh) -> MeshView:
    coordinate = mesh.get_coordinate()
    return MeshView(
        names=tuple(mesh.mesh_dim_names or (f"dim{i}" for i in range(mesh.ndim))),
        shape=tuple(mesh.shape),
        ranks=tuple(int(rank) for rank in mesh.mesh.flatten().tolist()),
        device_type=mesh.device_type,
        coordinate=None if coordinate is None else tuple(coordinate),
    )


def view_tensor(tensor: torch.Tensor, store: TensorStore, *, keep: bool = True) -> TensorRecord:
    """Record a tensor; its bytes go to `store`, or are only named by their digest."""
    if isinstance(tensor, DTensor):
        local = tensor.to_local().detach()
        # The result of a collective that is still under way has no storage before it is waited for.
        wait = getattr(local, "wait", None)
        local = wait() if callable(wait) else local
        mesh, placements = (
            view_mesh(tensor.device_mesh),
            tuple(map(view_placement, tensor.placements)),
        )
    else:
        local, mesh, placements = tensor.detach(), None, ()
    if local.layout is not torch.strided:
        # The gradient of a sparse embedding is a gradient like any other.
        local = local.to_dense()
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    readable = local.device.type != "meta"
    storage = local.untyped_storage()
    return TensorRecord(
        kind="dtensor" if mesh is not None else "plain" if plain else "other",
        type_name=_type_name(tensor),
        device=str(local.device),
        dtype=str(tensor.dtype),
        shape=tuple(tensor.shape),
        stride=tuple((local if mesh is None else tensor).stride()),
        local_shape=tuple(local.shape),
        requires_grad=tensor.requires_grad,
        mesh=mesh,
        placements=placements,
        digest=store.put(local, keep=keep) if readable else None,
        storage_bytes=storage.nbytes(),
        alias=storage.data_ptr() if readable and storage.nbytes() else id(tensor),
        identity=id(tensor),
        local_dtype="" if local.dtype == tensor.dtype else str(local.dtype),
    )


def view_value(value: Any, store: TensorStore) -> Record:
    """Record any value; two records are equal when the values are."""
    if isinstance(value, torch.Tensor):
        return view_tensor(value, store)
    return ValueRecord(_type_name(value), _text(value))


def flat_values(tree: Any, store: TensorStore, prefix: str = "") -> dict[str, Record]:
    """Every leaf of nested mappings and sequences under a dotted key; empty ones are leaves.

    A key that is no text is in brackets: a milestone ``{4: 1}`` that comes back as ``{"4": 1}`` is
    met by no step. A list and a tuple are told apart only where they are empty: whoever reads one
    by its items reads the other as well, and formats such as JSON have but one of them.
    """
    if isinstance(tree, Mapping) and tree:
        items = [(key if isinstance(key, str) else f"[{key!r}]", v) for key, v in tree.items()]
    elif isinstance(tree, (list, tuple)) and tree:
        items = [(str(index), value) for index, value in enumerate(tree)]
    else:
        return {prefix: view_value(tree, store)}
    leaves: dict[str, Record] = {}
    for key, value in items:
        dot = "." if prefix and not key.startswith("[") else ""
        leaves.update(flat_values(value, store, f"{prefix}{dot}{key}"))
    return leaves


def _type_name(value: object) -> str:
    cls = type(value)
    # A plain Parameter is a plain tensor to every rule; DTensor parameters are of class DTensor.
    if cls is torch.nn.Parameter:
        return "Tensor"
    return cls.__name__


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, (Mapping, list, tuple, set, frozenset)) and not value:
        return repr(value)
    if isinstance(value, (set, frozenset)):
        # Its order is another in every process.
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    for fast in (True, False):
        # Without its memory of objects already seen ("fast") a pickle tells equal values alike,
        # however many of their parts are one object; cycles need that memory.
        raw = io.BytesIO()
        pickler = pickle.Pickler(raw, protocol=4)
        pickler.fast = fast
        try:
            pickler.dump(value)
        except Exception:
            continue
        digest = hashlib.blake2b(raw.getbuffer(), digest_size=8).hexdigest()
        return f"<{type(value).__qualname__} {digest}>"
    # Lambdas, generators and the like are told apart by their class alone.
    return f"<{type(value).__qualname__}>"
