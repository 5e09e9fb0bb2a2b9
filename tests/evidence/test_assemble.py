"""Full tensors from hand-cut parts, and what is said of parts that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_cplife.evidence.assemble import (
    Assembler,
    CannotAssemble,
    geometry_problem,
    replica_sets,
)
from pytest_cplife.evidence.records import MeshView, Placement, TensorRecord
from pytest_cplife.evidence.store import TensorStore
from tests.evidence.layouts import (
    cut,
    dtensor,
    mesh_views,
    partial,
    plain,
    replicate,
    shard,
    strided,
)


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    return TensorStore(tmp_path)


@pytest.fixture
def assembler(store: TensorStore) -> Assembler:
    return Assembler(store)


R, S0, S1 = replicate(), shard(0), shard(1)


@pytest.mark.parametrize(
    ("spec", "placements"),
    [
        ("dp=1", (R,)),
        ("dp=3", (R,)),
        ("dp=4", (S0,)),
        ("dp=4", (S1,)),
        ("dp=2,tp=2", (S0, S1)),
        ("dp=2,tp=2", (S0, S0)),
        ("dp=2,tp=3", (R, S1)),
        ("dp=2,tp=3", (S1, R)),
        ("a=2,b=2,c=2", (S0, R, S1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(7, 5), (3, 2), (1, 1), (0, 4), (4, 0)], ids=str)
def test_parts_are_put_together(
    store: TensorStore,
    assembler: Assembler,
    spec: str,
    placements: tuple[Placement, ...],
    shape: tuple[int, ...],
) -> None:
    """Dimensions that do not divide, and ranks that hold nothing, included."""
    whole = torch.randn(shape).to(torch.bfloat16)
    records = cut(whole, store, spec, *placements)
    seen = assembler.full(records)
    assert (seen.dtype, seen.shape) == (whole.dtype, whole.shape)
    assert torch.equal(seen, whole)
    assert assembler.digest(records) == store.put(whole, keep=False)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int64, torch.uint16], ids=str
)
def test_bits_survive_in_every_dtype(
    store: TensorStore, assembler: Assembler, dtype: torch.dtype
) -> None:
    raw = torch.arange(5 * 3 * dtype.itemsize, dtype=torch.uint8)
    whole = (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(5, 3)
    records = cut(whole, store, "dp=2", S0)
    assert assembler.digest(records) == store.put(whole, keep=False)


def test_a_replicated_scalar(store: TensorStore, assembler: Assembler) -> None:
    records = cut(torch.tensor(-0.0), store, "dp=2", R)
    seen = assembler.full(records)
    assert seen.shape == () and torch.signbit(seen)


def test_fsdp_over_tensor_parallelism(store: TensorStore, assembler: Assembler) -> None:
    whole = torch.arange(7.0)
    parts = {(0, 0): [0, 1], (0, 1): [4, 5], (1, 0): [2, 3], (1, 1): [6]}
    records = []
    for mesh in mesh_views("fsdp=2,tp=2"):
        assert mesh.coordinate is not None
        part = whole[parts[mesh.coordinate]]
        records.append(dtensor(part, store, (7,), mesh, strided(0, 2), S0))
    assert torch.equal(assembler.full(records), whole)


def test_partial_sums_are_summed(store: TensorStore, assembler: Assembler) -> None:
    meshes = mesh_views("dp=2,tp=2")
    halves = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    records = [
        dtensor(halves[m.coordinate[0]][m.coordinate[1] :][:1], store, (2,), m, partial(), S0)
        for m in meshes
        if m.coordinate
    ]
    assert assembler.full(records).tolist() == [11.0, 22.0]
    averaged = [replace(r, placements=(partial("avg"), S0)) for r in records]
    assert assembler.full(averaged).tolist() == [5.5, 11.0]


def test_replicas_of_a_partial_sum_count_once(store: TensorStore, assembler: Assembler) -> None:
    records = [
        dtensor(torch.tensor(float(2**i)), store, (), mesh, partial(), R)
        for i, mesh in zip((0, 0, 1, 1), mesh_views("dp=2,tp=2"), strict=True)
    ]
    assert assembler.full(records).item() == 3.0


def test_other_reductions_are_not_guessed(store: TensorStore, assembler: Assembler) -> None:
    records = [
        dtensor(torch.ones(2), store, (2,), mesh, partial("max")) for mesh in mesh_views("dp=2")
    ]
    with pytest.raises(CannotAssemble, match=r"P\(max\) cannot be summed"):
        assembler.full(records)


def sub_meshes(whole: torch.Tensor, store: TensorStore) -> list[TensorRecord]:
    """Four ranks of which each pair shards the tensor on a mesh of its own."""
    records = []
    for first in (0, 2):
        for record in cut(whole, store, "tp=2", S0):
            assert record.mesh is not None
            mesh = replace(record.mesh, ranks=(first, first + 1))
            records.append(replace(record, mesh=mesh))
    return records


def test_sub_meshes_hold_copies(store: TensorStore, assembler: Assembler) -> None:
    whole = torch.arange(5.0)
    records = sub_meshes(whole, store)
    assert torch.equal(assembler.full(records), whole)
    assert replica_sets(records) == [[0, 2], [1, 3]]
    summed = [
        replace(record, placements=(partial(),), local_shape=(5,), digest=store.put(whole))
        for record in records
    ]
    assert torch.equal(assembler.full(summed), 2 * whole)


def test_plain_tensors_are_taken_from_the_first_rank(
    store: TensorStore, assembler: Assembler
) -> None:
    records = [plain(torch.full((2,), float(rank)), store) for rank in range(3)]
    assert assembler.full(records).tolist() == [0.0, 0.0]
    assert assembler.digest(records) == records[0].digest
    assert replica_sets(records) == [[0, 1, 2]]


def test_replicas_are_ranks_of_one_shard(store: TensorStore) -> None:
    whole = torch.arange(8.0).reshape(4, 2)
    assert replica_sets(cut(whole, store, "dp=2,tp=2", S0, S1)) == [[0], [1], [2], [3]]
    assert replica_sets(cut(whole, store, "dp=2,tp=2", R, S1)) == [[0, 2], [1, 3]]
    assert replica_sets(cut(whole, store, "dp=2,tp=2", S0, R)) == [[0, 1], [2, 3]]
    assert replica_sets(cut(whole, store, "dp=2,tp=2", R, R)) == [[0, 1, 2, 3]]
    # What partial sums hold before they are summed is each rank's own affair.
    assert replica_sets(cut(whole, store, "dp=2,tp=2", partial(), R)) == [[0, 1], [2, 3]]


def of(records: list[TensorRecord], rank: int, **changes: object) -> list[TensorRecord]:
    changed = list(records)
    changed[rank] = replace(records[rank], **changes)  # type: ignore[arg-type]
    return changed


def test_what_does_not_fit_is_named_with_its_rank(store: TensorStore, assembler: Assembler) -> None:
    good = cut(torch.arange(6.0).reshape(3, 2), store, "dp=3", S0)
    assert geometry_problem(good) == ""
    outside = MeshView(("dp",), (3,), (0, 1, 2), "cpu", None)
    wrong = {
        "shape is [3, 2] on rank 0 but [4, 2] on rank 2": of(good, 2, shape=(4, 2)),
        "dtype is torch.float32 on rank 0 but torch.int8 on rank 1": of(
            good, 1, dtype="torch.int8"
        ),
        "placements is [S(0)] on rank 0 but [S(1)] on rank 1": of(good, 1, placements=(S1,)),
        "kind is dtensor on rank 0 but plain on rank 1": of(good, 1, kind="plain"),
        "rank 2 is not in the mesh": of(good, 2, mesh=outside),
        "rank 1 holds (2, 2) where [S(0)] of (3, 2) over (3,) gives (1, 2)": of(
            good, 1, local_shape=(2, 2)
        ),
        "rank 1 holds torch.bfloat16 in a tensor of torch.float32": of(
            good, 1, local_dtype="torch.bfloat16"
        ),
    }
    for text, records in wrong.items():
        assert geometry_problem(records) == text
        with pytest.raises(CannotAssemble) as caught:
            assembler.full(records)
        assert str(caught.value) == text


def test_meshes_that_differ_are_named(store: TensorStore) -> None:
    records = cut(torch.arange(6.0), store, "dp=3", S0)
    renamed = of(records, 2, mesh=MeshView(("tp",), (3,), (0, 1, 2), "cpu", (2,)))
    assert geometry_problem(renamed) == "rank 0 has a mesh dp=3, rank 2 one of tp=3"
    records[1:] = cut(torch.arange(6.0), store, "dp=2", S0)
    assert geometry_problem(records) == "rank 0 has a mesh dp=3, rank 1 one of dp=2"


def test_unknown_placements(store: TensorStore) -> None:
    ragged = Placement("unknown", text="Ragged()")
    records = cut(torch.arange(6.0), store, "dp=3", S0)
    records = [replace(record, placements=(ragged,)) for record in records]
    assert geometry_problem(records) == "placements [Ragged()] are not known"


def test_a_split_factor_that_nothing_explains(store: TensorStore) -> None:
    records = [
        replace(record, placements=(strided(0, 2),))
        for record in cut(torch.arange(6.0), store, "dp=3", S0)
    ]
    assert "split factor 2" in geometry_problem(records)


def test_values_that_are_not_there(store: TensorStore, assembler: Assembler) -> None:
    meta = plain(torch.zeros(2), store, digest=None, device="meta")
    for ask in (assembler.digest, assembler.full):
        with pytest.raises(CannotAssemble, match=r"rank 0 holds no values \(device meta\)"):
            ask([meta])
    records = of(cut(torch.zeros(4), store, "dp=2", S0), 1, digest=None, device="meta")
    with pytest.raises(CannotAssemble, match=r"rank 1 holds no values \(device meta\)"):
        assembler.full(records)


def test_a_digest_is_made_once(
    store: TensorStore, assembler: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = cut(torch.arange(6.0), store, "dp=2", S0)
    calls: list[int] = []
    full = Assembler.full
    monkeypatch.setattr(Assembler, "full", lambda *a: calls.append(1) or full(*a))
    assert assembler.digest(records) == assembler.digest(list(records))
    assert len(calls) == 1
    assembler.digest(cut(torch.arange(6.0) + 1, store, "dp=2", S0))
    assert len(calls) == 2
